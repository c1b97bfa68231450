package tier

// Sink receives copies of objects that this node may lose: a store shared by all nodes,
// or a neighbor with room. All methods may be called concurrently.
type Sink interface {
	// Expect returns how fast a copy can be fetched back. Like Admit it reads memory only
	// and is called under the store's lock.
	Expect() Hint
	// Admit accepts an object for copying. It reads memory only, never waits and never
	// calls back. ErrExists: it is already there or in flight. ErrBusy: too much is in
	// flight. ErrFull: no room there. ErrUnavailable: nothing is accepted now.
	// ErrInvalid: this object is never accepted. The caller starts or cancels the Write.
	// done is called within a bounded time, with LevelSynced if the copy is there.
	Admit(o *Object) (Write, error)
}
