/* SPDX-License-Identifier: Apache-2.0 */
extern const int base_stub;
const int base_stub = 0;
