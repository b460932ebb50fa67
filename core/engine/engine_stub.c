/* SPDX-License-Identifier: Apache-2.0 */
extern const int engine_stub;
const int engine_stub = 0;
