/* SPDX-License-Identifier: Apache-2.0 */
extern const int offload_stub;
const int offload_stub = 0;
