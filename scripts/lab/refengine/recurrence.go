package refengine

import "github.com/spliced-kv/spliced/policy/profile"

// head is the input of one value head for n consecutive tokens. A stride (sq, sk, sv, sdecay,
// sbeta, serase) is the distance between tokens in elements; 0 = all tokens use the first value.
//
// With S [dk, dv] and the token's decay g, key k, value v and write strength b:
//
//	plain families   S = g*S + b*k v^T
//	delta families   S = g*S, then S = S + b*k (v - k^T S)^T
//	with erase e     S = g*S, then S = S + b*k (v - e^T S)^T
//	output           o = q^T S
//
// This is HYPIC Eq. 2 with the transitions of Table 1. The decay comes before the delta, as in
// engines.
type head[F Float] struct {
	n          int
	q, k, v    []F // q may be nil if run has no out
	sq, sk, sv int
	decay      []F
	sdecay     int
	perKey     int // 1: one decay per key channel; 0: one per token
	beta       []F
	sbeta      int
	delta      bool
	erase      []F // if set, replaces k when a delta family reads the state
	serase     int
}

// run advances the state over the tokens and writes their outputs to out, which may be nil. The
// parameter so is the distance between two outputs, in elements. scratch has room for dv elements.
func (h *head[F]) run(state []F, dk, dv int, out []F, so int, scratch []F) {
	u := scratch[:dv]
	for t := range h.n {
		k := h.k[t*h.sk : t*h.sk+dk]
		g := h.decay[t*h.sdecay:]
		beta := h.beta[t*h.sbeta]
		v := h.v[t*h.sv : t*h.sv+dv]
		if h.delta {
			clear(u)
			h.forget(state, h.reader(t, k), g, u)
			for j := range u {
				u[j] = beta * (v[j] - u[j])
			}
		} else {
			h.decayAll(state, g, dk, dv)
			for j := range u {
				u[j] = beta * v[j]
			}
		}
		if out == nil {
			write(state, k, u)
			continue
		}
		o := out[t*so : t*so+dv]
		clear(o)
		writeRead(state, k, u, h.q[t*h.sq:t*h.sq+dk], o)
	}
}

// reader returns the vector with which token t, whose key is k, reads the state.
func (h *head[F]) reader(t int, k []F) []F {
	if h.erase == nil {
		return k
	}
	return h.erase[t*h.serase:][:len(k)]
}

// forget decays the state S and adds k^T S of the decayed state to mem. It handles four rows at
// a time, so that it reads and writes each row once, and mem once per four rows.
func (h *head[F]) forget(state, k, g, mem []F) {
	dv := len(mem)
	i := 0
	for ; i+4 <= len(k); i += 4 {
		r0 := state[i*dv:][:dv]
		r1 := state[(i+1)*dv:][:dv]
		r2 := state[(i+2)*dv:][:dv]
		r3 := state[(i+3)*dv:][:dv]
		g0, g1, g2, g3 := g[i*h.perKey], g[(i+1)*h.perKey], g[(i+2)*h.perKey], g[(i+3)*h.perKey]
		k0, k1, k2, k3 := k[i], k[i+1], k[i+2], k[i+3]
		for j := range mem {
			a, b, c, d := r0[j]*g0, r1[j]*g1, r2[j]*g2, r3[j]*g3
			r0[j], r1[j], r2[j], r3[j] = a, b, c, d
			mem[j] += k0*a + k1*b + k2*c + k3*d
		}
	}
	for ; i < len(k); i++ {
		r, gi, ki := state[i*dv:][:dv], g[i*h.perKey], k[i]
		for j := range mem {
			a := r[j] * gi
			r[j] = a
			mem[j] += ki * a
		}
	}
}

func (h *head[F]) decayAll(state, g []F, dk, dv int) {
	for i := range dk {
		gi := g[i*h.perKey]
		r := state[i*dv:][:dv]
		for j := range r {
			r[j] *= gi
		}
	}
}

// write adds k u^T to the state.
func write[F Float](state, k, u []F) {
	dv := len(u)
	for i, ki := range k {
		r := state[i*dv:][:dv]
		for j, x := range u {
			r[j] += ki * x
		}
	}
}

// writeRead adds k u^T to the state S, and then adds q^T S to o.
func writeRead[F Float](state, k, u, q, o []F) {
	dv := len(u)
	o = o[:dv]
	i := 0
	for ; i+4 <= len(k); i += 4 {
		r0 := state[i*dv:][:dv]
		r1 := state[(i+1)*dv:][:dv]
		r2 := state[(i+2)*dv:][:dv]
		r3 := state[(i+3)*dv:][:dv]
		k0, k1, k2, k3 := k[i], k[i+1], k[i+2], k[i+3]
		q0, q1, q2, q3 := q[i], q[i+1], q[i+2], q[i+3]
		for j, x := range u {
			a, b, c, d := r0[j]+k0*x, r1[j]+k1*x, r2[j]+k2*x, r3[j]+k3*x
			r0[j], r1[j], r2[j], r3[j] = a, b, c, d
			o[j] += q0*a + q1*b + q2*c + q3*d
		}
	}
	for ; i < len(k); i++ {
		r, ki, qi := state[i*dv:][:dv], k[i], q[i]
		for j, x := range u {
			a := r[j] + ki*x
			r[j] = a
			o[j] += qi * a
		}
	}
}

// Tuple is the transition and end-state of a run of tokens at one layer: T is
// [Hv], [Hv, dk] or [Hv, dk, dk], S is [Hv, dk, dv] (HYPIC §4.2).
type Tuple[F Float] struct{ T, S []F }

// cumulate stores the product of the tokens' transitions in t, with later tokens on the left.
// Scalar products use float64, because rounding hundreds of factors near one in float32 would
// cost more digits than storing T does.
func (h *head[F]) cumulate(t []F, form profile.Transition, dk int, scratch []F) {
	switch form {
	case profile.Scalar:
		p := 1.0
		for i := range h.n {
			p *= float64(h.decay[i*h.sdecay])
		}
		t[0] = F(p)
	case profile.Diagonal:
		for c := range dk {
			p := 1.0
			for i := range h.n {
				p *= float64(h.decay[i*h.sdecay+c*h.perKey])
			}
			t[c] = F(p)
		}
	case profile.Dense:
		clear(t[:dk*dk])
		for i := range dk {
			t[i*dk+i] = 1
		}
		// Run the recurrence from the identity matrix with zero values: S = prod(T_i) * I.
		bare := *h
		bare.v, bare.sv = make([]F, dk), 0
		bare.run(t, dk, dk, nil, 0, scratch)
	}
}
