"""The delta rule over whole sequences in plain PyTorch, for training without CUDA: what fla's kernels do on a GPU.

model.py calls delta_rule(); `python3 chunks.py` compares it and its gradients with the token-by-token recurrence.

In a chunk of C tokens that starts from the state S, with the decays summed up to G_t within the chunk, the writes d_t
of Kimi Linear's equation (the delta rule, Diag(a_t) = e^{g_t}) depend on the earlier ones only through
    A_tj = beta_t * sum over channels of k_t k_j e^{G_t - G_j},   j < t,
so (I + A) D = beta (V - (K e^G) S) is one triangular system. All chunks are solved at once for the part that S does not
touch and for the part that it multiplies; only S itself goes from chunk to chunk in a loop.
"""
import torch
import torch.nn.functional as F

CHUNK = 16  # tokens; e^{G_t - G_j} is a product of two factors, which must both stay finite
FLOOR = -10.0  # log-decay of a token at least, or it counts as this: 8 of them, half a chunk, make e^-80


def chunked(x, extra):
    """[B,T,H,D] -> [B*H,N,CHUNK,D], zeros after the last token."""
    x = F.pad(x.transpose(1, 2), (0, 0, 0, extra))
    return x.reshape(x.shape[0] * x.shape[1], -1, CHUNK, x.shape[-1])


def delta_rule(q, k, v, g, beta):
    """Outputs [B,T,H,V] from a zero state. q, k, g [B,T,H,K], q and k as they enter the rule; v [B,T,H,V];
    beta [B,T,H]."""
    batch, steps, heads, keys = k.shape
    extra = -steps % CHUNK
    q, k, v, g, beta = (chunked(x, extra) for x in (q, k, v, g.clamp(min=FLOOR), beta[..., None]))
    total = g.cumsum(2)
    middle, end = total[:, :, CHUNK // 2 - 1:CHUNK // 2], total[:, :, -1:]
    under = k * (middle - total).exp()  # k_j e^{-G_j}, up to the middle's factor
    over = (total - middle).exp()
    inside = ((q * over) @ under.mT).tril()  # what lies above is e^{G_t - G_j} of a later j and may be infinite
    writes = beta * ((k * over) @ under.mT).tril(-1)
    since = total.exp()
    both = torch.cat([v, k * since], -1) * beta
    both = torch.linalg.solve_triangular(writes, both, upper=False, unitriangular=True)
    parts = *both.split([v.shape[-1], keys], -1), inside, q * since, (k * (end - total).exp()).mT, end.exp().mT
    state, out = k.new_zeros(batch * heads, keys, v.shape[-1]), []
    for own, seen, inside, asked, left, decay in zip(*(x.unbind(1) for x in parts)):
        d = torch.baddbmm(own, seen, state, alpha=-1)
        out.append(torch.baddbmm(inside @ d, asked, state))
        state = torch.baddbmm(decay * state, left, d)
    out = torch.stack(out, 1).view(batch, heads, steps + extra, -1)[:, :, :steps]
    return out.transpose(1, 2)


def main():
    import decode
    torch.manual_seed(0)
    batch, steps, heads, size = 2, 75, 3, 32
    q, k = (F.normalize(torch.randn(batch, steps, heads, size), dim=-1) for _ in range(2))
    v = torch.randn(batch, steps, heads, size)
    g = -torch.exp(3 * torch.randn(batch, steps, heads, size) - 3).clamp(max=-FLOOR)
    g[:, :, :, 0] = FLOOR  # the strongest decay all the time
    beta = torch.rand(batch, steps, heads)
    weight = torch.randn(batch, steps, heads, size)

    def stepwise(q, k, v, g, beta):  # decode.scan_torch's equation, without its updates in place
        state, out = torch.zeros(batch, heads, size, size, dtype=q.dtype), []
        for t in range(steps):
            state = state * g[:, t, :, :, None].exp()
            d = (v[:, t] - torch.einsum("bhkv,bhk->bhv", state, k[:, t])) * beta[:, t, :, None]
            state = state + k[:, t, :, :, None] * d[:, :, None]
            out.append(torch.einsum("bhkv,bhk->bhv", state, q[:, t]))
        return torch.stack(out, 1)

    results = []
    for rule, kind in ((delta_rule, torch.float32), (stepwise, torch.float64)):
        inputs = [x.detach().to(kind, copy=True).requires_grad_() for x in (q, k, v, g, beta)]
        out = rule(*inputs)
        (out * weight.to(kind)).sum().backward()
        results.append([out.detach()] + [x.grad for x in inputs])
    memory = torch.zeros(batch, heads, size, size)
    results[1].append(decode.scan_torch(memory, q, k, v, g, beta))
    results[0].append(results[0][0])
    worst = {}
    for name, a, b in zip(("out", "dq", "dk", "dv", "dg", "dbeta", "decode"), *results):
        worst[name] = float((a.double() - b.double()).norm() / b.double().norm())
    print(" ".join(f"{n} {x:.1e}" for n, x in worst.items()))
    if not all(x <= 1e-5 for x in worst.values()):  # nor NaN
        raise SystemExit("chunks.py differs from the recurrence, expected at most 1e-5 of the norm")


if __name__ == "__main__":
    main()
