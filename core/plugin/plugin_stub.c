/* SPDX-License-Identifier: Apache-2.0 */
extern const int plugin_stub;
const int plugin_stub = 0;
