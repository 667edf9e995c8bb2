// Parts of s = Q K'.
#pragma once

#include "tile.cuh"

