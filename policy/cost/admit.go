package cost

// ColdShare is the part of computing a prompt that may be spent on keeping what
// nobody has asked for twice: short and cold prompts cost at most 1 %.
const ColdShare = 0.01

// Candidate is an object that may come in.
type Candidate struct {
	Held
	Asked bool // the client named it, such as a boundary of the application
	Seen  int  // times that its tokens came before
	// Returns is the share of objects like it that were asked for again, as far as
	// that was learned.
	Returns float64
	// Floor is the density (milliseconds per MiB) of what left the pool last, 0
	// while it has room: cold objects below it are refused, seen ones are not,
	// since the pool's own order will judge them.
	Floor    float64
	MaxBytes int64 // most that one object may take of the pool; 0 = no limit
}

// Admit says whether an object should come in. In this order: it fits, a hit
// would save time at all, it is expected again (seen, asked for, or others like
// it came back often enough to pay for its publication) or, being cold, costs at
// most ColdShare of computing it and earns its place.
//
// Invariant: of what is not expected again, nothing is admitted whose publication
// takes more than ColdShare of its computation.
func (m *Model) Admit(c Candidate) (ok bool, why Reason) {
	why = m.judge(c)
	return why.Admitted(), why
}

func (m *Model) judge(c Candidate) Reason {
	if c.End <= c.Begin {
		return ReasonShort
	}
	if c.MaxBytes > 0 && c.Bytes > c.MaxBytes {
		return ReasonLarge
	}
	saved := m.Saved(Held{Begin: c.Begin, End: c.End, Bytes: c.Bytes, In: c.In})
	publishing := m.Link(JobPublish).Millis(c.Bytes)
	switch uses := float64(1 + c.Seen); {
	case saved <= 0 && m.longerWouldPay(c.In):
		return ReasonShort
	case saved <= 0:
		return ReasonNoGain
	case c.Seen > 0 && saved*uses > publishing:
		return ReasonSeen
	case c.Asked:
		return ReasonAsked
	case c.Returns*saved > publishing:
		return ReasonReturning
	case c.Seen > 0:
		return ReasonShort
	case publishing > ColdShare*m.Prefill().Marginal(c.Begin, c.End):
		return ReasonCold
	case PerMiB(saved, c.Bytes) < c.Floor:
		return ReasonThin
	}
	return ReasonCheap
}

// longerWouldPay reports whether a token costs more to compute than its rows to
// bring: then it is the states that make a hit too dear.
func (m *Model) longerWouldPay(t Tier) bool {
	j, ok := loadJob(t)
	return ok && m.Prefill().PerToken > m.Link(j).PerByte*float64(m.Shape.KVBytes)
}
