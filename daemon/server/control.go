package server

import (
	"crypto/sha256"

	"github.com/spliced-kv/spliced/connector/wire"
	"github.com/spliced-kv/spliced/daemon/codes"
	"github.com/spliced-kv/spliced/daemon/settings"
	"github.com/spliced-kv/spliced/tiering"
)

// tokens holds the tokens of all tenants, in the order of the configuration. All are replaced
// together.
type tokens struct {
	sums [][sha256.Size]byte
	open []bool // the tenant requires no token
}

// SetTokens replaces the tokens that clients must show from now on. The parameter list contains the
// tenants of the configuration, in the same order. Attached clients stay attached.
func (s *Server) SetTokens(list []settings.Tenant) {
	t := &tokens{}
	for i := range list {
		t.sums = append(t.sums, sha256.Sum256([]byte(list[i].Token)))
		t.open = append(t.open, list[i].Token == "")
	}
	s.tokens.Store(t)
}

// Drain starts or stops refusing new clients and new fills. Attached clients can still read, lease,
// and finish the fills that they have begun.
func (s *Server) Drain(on bool) { s.draining.Store(on) }

// Draining reports whether the server refuses new clients and new fills.
func (s *Server) Draining() bool { return s.draining.Load() }

// drained lists the operations that a draining daemon refuses. They begin something that the drain
// would have to wait for, or that would be lost.
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

// Holders returns the attached clients in order of their connection ids. It includes clients that
// were dropped but still have leases.
func (s *Server) Holders() (list []Holder) {
	for _, c := range s.list() {
		if a := c.attached.Load(); a != nil {
			list = append(list, Holder{c.id, a.client, a.session})
		}
	}
	return list
}
