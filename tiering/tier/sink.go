package tier

// Sink is where copies of objects may go that this node may lose: a store that all nodes
// share, or a neighbour with room. All methods may run at once.
type Sink interface {
	// Expect is how fast what lies there can be fetched. It looks at memory only, and is
	// called under the store's lock, as is Admit.
	Expect() Hint
	// Admit takes an object to be copied. It looks at memory only, never waits and never
	// calls back. ErrExists: it is there, or on its way. ErrBusy: too much is on its way.
	// ErrFull: no room there. ErrUnavailable: it takes nothing now. ErrInvalid: it never
	// takes this object. The answer is to be started or canceled; done is called within a
	// bounded time, and answers LevelSynced for what is there.
	Admit(o *Object) (Write, error)
}
