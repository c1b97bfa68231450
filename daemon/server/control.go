package server

import (
	"crypto/sha256"

	"github.com/spliced-kv/spliced/connector/wire"
	"github.com/spliced-kv/spliced/daemon/codes"
	"github.com/spliced-kv/spliced/daemon/settings"
	"github.com/spliced-kv/spliced/tiering"
)

// tokens are the tokens of clients, by tenant. They are replaced together.
type tokens struct {
	sums [][sha256.Size]byte
	open []bool // no token required
}

// SetTokens replaces the tokens for clients that attach from now on. list contains the
// tenants of the configuration, in its order. Attached clients stay.
func (s *Server) SetTokens(list []settings.Tenant) {
	t := &tokens{}
	for i := range list {
		t.sums = append(t.sums, sha256.Sum256([]byte(list[i].Token)))
		t.open = append(t.open, list[i].Token == "")
	}
	s.tokens.Store(t)
}

// Drain starts or stops refusing new clients and new fills. Attached clients can read,
// lease, and finish fills that they have begun.
func (s *Server) Drain(on bool) { s.draining.Store(on) }

// Draining reports whether Drain was called.
func (s *Server) Draining() bool { return s.draining.Load() }

// drained lists the operations that a draining daemon refuses: those that begin something
// that the drain would have to wait for, or that would be lost.
var drained = [wire.OpCount]bool{wire.OpHello: true, wire.OpReserve: true, wire.OpSave: true}

func (s *Server) refuseDraining(op wire.Op) error {
	if drained[op] && s.draining.Load() {
		return codes.Refuse(wire.Unavailable, "this daemon is being drained: it accepts no new clients and objects")
	}
	return nil
}

// Holder is a client that may hold leases.
type Holder struct {
	Connection uint64
	Client     string
	Session    *tiering.Session
}

// Holders returns the attached clients in order of their ids, including those that were
// dropped but still have leases.
func (s *Server) Holders() (list []Holder) {
	for _, c := range s.list() {
		if a := c.attached.Load(); a != nil {
			list = append(list, Holder{c.id, a.client, a.session})
		}
	}
	return list
}
