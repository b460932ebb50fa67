/* SPDX-License-Identifier: Apache-2.0
 *
 * engine.h - what the files of the engine share.
 */
#ifndef INFERNIX_CORE_ENGINE_H
#define INFERNIX_CORE_ENGINE_H

#include "infernix.h"
#include "offload.h"

#endif
