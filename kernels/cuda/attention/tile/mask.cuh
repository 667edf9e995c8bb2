// Parts of the pass over the scores of an edge.
#pragma once

#include "tile.cuh"

