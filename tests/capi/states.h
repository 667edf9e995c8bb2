/* Shared by the programs of tasks: structs of the arrays of states. */
#ifndef STATES_H
#define STATES_H

#include "common.h"

/* Returns the arrays to which a call writes states. */
static elsa_states_out into(float *of_m, float *of_s, float *of_w) {
    elsa_states_out made;
    made.m = of_m;
    made.s = of_s;
    made.w = of_w;
    return made;
}

/* Returns the arrays from which a call reads states. */
static elsa_states_in from(const float *of_m, const float *of_s, const float *of_w) {
    elsa_states_in made;
    made.m = of_m;
    made.s = of_s;
    made.w = of_w;
    return made;
}

#endif
