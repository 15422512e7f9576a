/* state/codec_mixed.c: LeapQuant with the bits of each head from a layout: heads that remember long get more, since an
 * error lives as long as what it is an error of; those that forget at once get fewer. Arithmetic and byte layout are
 * those of codec_leap (leap.h), which a head of b bits is stored as; heads of a layer differ in size. */
#include "state/leap.h"

static const ebb_param params[] = {
    EBB_PARAM_WINDOW,
    {"r", 0, LEAP_MAX_R, 4, NULL, "compensator tokens, at most the smaller dimension"},
    {NULL, 0, 0, 0, NULL, NULL},
};

static ebb_status layout(const ebb_head *head, ebb_planes *planes, ebb_error *error) {
    if (!head->table || !head->table->bits)
        return ebb_fail(error, EBB_BAD_ARGUMENT,
                        "leap-mix needs a layout with the bits of each head; `ebb calibrate --method leap-mix` makes "
                        "one");
    const leap_form form = leap_mix_form(head);
    if (form.bits != 4 && form.bits != 5 && form.bits != 6 && form.bits != 8 && form.bits != 12)
        return ebb_fail(error, EBB_BAD_ARGUMENT,
                        "layer %d of the layout: head %d has %d bits, expected 4, 5, 6, 8 or 12", head->layer->index,
                        head->layer->head_begin + head->head, form.bits);
    const leap_shape p = leap_shape_of(head->layer, form);
    *planes = leap_planes(&p);
    return EBB_OK;
}

static void encode(const ebb_head *head, const float *S, const float *decay, const void *old, void *packed,
                   float *tmp) {
    const leap_shape p = leap_shape_of(head->layer, leap_mix_form(head));
    leap_encode(&p, head->rng_key, S, decay, old, packed, tmp);
}

static void decode(const ebb_head *head, const void *packed, float *S) {
    const leap_shape p = leap_shape_of(head->layer, leap_mix_form(head));
    leap_decode(&p, packed, S);
}

const ebb_state_codec codec_mixed = {"leap-mix", params, EBB_NEEDS_TABLE | EBB_KEEPS_OLD, layout, encode, decode};
