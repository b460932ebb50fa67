/* SPDX-License-Identifier: Apache-2.0 */
extern const int artifact_stub;
const int artifact_stub = 0;
