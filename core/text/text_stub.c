/* SPDX-License-Identifier: Apache-2.0 */
extern const int text_stub;
const int text_stub = 0;
