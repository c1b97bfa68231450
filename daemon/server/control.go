package server

import (
	"crypto/sha256"

	"github.com/spliced-kv/spliced/connector/wire"
	"github.com/spliced-kv/spliced/daemon/codes"
	"github.com/spliced-kv/spliced/daemon/settings"
	"github.com/spliced-kv/spliced/tiering"
)

// tokens are what clients show, by tenant. They are replaced together.
type tokens struct {
	sums [][sha256.Size]byte
	open []bool // without a token
}

// SetTokens has clients that attach from now on show other tokens; list are the tenants of
// the configuration, in its order. Those that are attached stay.
func (s *Server) SetTokens(list []settings.Tenant) {
	t := &tokens{}
	for i := range list {
		t.sums = append(t.sums, sha256.Sum256([]byte(list[i].Token)))
		t.open = append(t.open, list[i].Token == "")
	}
	s.tokens.Store(t)
}

// Drain has new clients and new fills refused, or not any more. What is attached reads on,
// takes leases, and ends what it has begun to fill.
func (s *Server) Drain(on bool) { s.draining.Store(on) }

// Draining reports whether Drain was called.
func (s *Server) Draining() bool { return s.draining.Load() }

// drained are the operations that a daemon which is drained refuses: what begins something
// that has to be waited for, or would be lost.
var drained = [wire.OpCount]bool{wire.OpHello: true, wire.OpReserve: true, wire.OpSave: true}

func (s *Server) refuseDraining(op wire.Op) error {
	if drained[op] && s.draining.Load() {
		return codes.Refuse(wire.Unavailable, "this daemon is being drained: it takes no new clients and nothing new")
	}
	return nil
}

// Holder is a client that may hold leases.
type Holder struct {
	Connection uint64
	Client     string
	Session    *tiering.Session
}

// Holders are the attached clients, in order of their ids, those included that have been
// dropped and not let go yet.
func (s *Server) Holders() (list []Holder) {
	for _, c := range s.list() {
		if a := c.attached.Load(); a != nil {
			list = append(list, Holder{c.id, a.client, a.session})
		}
	}
	return list
}
