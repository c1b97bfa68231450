package tiering

// Abandon ends a session whose client has not let go yet: it may still be
// reading what it leased, though nobody will hear of a release. Reservations are
// aborted, leases quarantined as if their time were over, and nothing new is
// begun. Close frees the memory.
func (c *Session) Abandon() {
	c.end(func(l *lease) {
		if !l.expired {
			c.store.expireLocked(l)
		}
	})
}
