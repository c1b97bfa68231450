package daemon

import (
	"encoding/binary"
	"fmt"
	"testing"

	"github.com/spliced-kv/spliced/connector/wire"
	"github.com/spliced-kv/spliced/daemon/settings"
	"github.com/spliced-kv/spliced/policy/profile"
)

// bareCall is a request whose frame is made once, so that the client costs
// nothing that can be left out.
type bareCall struct {
	c          *rawClient
	frame, buf []byte
}

func (c *rawClient) bare(b testing.TB, op wire.Op, m wire.Message) *bareCall {
	h := c.header(op)
	frame, err := wire.AppendFrame(nil, &h, m)
	must(b, err)
	must(b, c.conn.SetRecvTimeout(0))
	return &bareCall{c, frame, make([]byte, wire.MaxFrame)}
}

// do exchanges once and returns the body of the reply.
func (k *bareCall) do(b testing.TB) []byte {
	k.c.last++
	binary.LittleEndian.PutUint64(k.frame[8:], k.c.last)
	must(b, k.c.conn.Send(k.frame, nil))
	n, _, err := k.c.conn.Recv(k.buf)
	must(b, err)
	h, body, err := wire.ParseHeader(k.buf[:n])
	if err != nil || h.Code != wire.OK {
		b.Fatalf("%v: %s, %v", h.Code, body, err)
	}
	return body
}

func (k *bareCall) loop(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		k.do(b)
	}
}

func BenchmarkRoundTrip(b *testing.B) { roundTrips(b, testConfig(b)) }

// The same with a disk tier below: what is in memory must not cost more.
func BenchmarkRoundTripAboveADisk(b *testing.B) { roundTrips(b, withDisk(b)) }

func roundTrips(b *testing.B, config settings.Config) {
	r := startDaemon(b, config, nil)
	c := attach(b, r.Socket())
	p := testProfile(1)
	c.register(p)
	var keys [][32]byte
	var docs []*document
	for i := range 256 {
		d := newDocument(p, nil, uint64(i), 8, profile.RoleFirst)
		c.publish(d)
		keys, docs = append(keys, d.key), append(docs, d)
	}
	for _, n := range []int{1, 32, 256} {
		b.Run(fmt.Sprintf("match/keys=%d", n), func(b *testing.B) {
			c.bare(b, wire.OpMatch, &wire.MatchRequest{Profile: c.profile, Keys: keys[:n]}).loop(b)
		})
	}
	for _, n := range []int{256, 2048, 16384} {
		b.Run(fmt.Sprintf("advise/tokens=%d", n), func(b *testing.B) {
			c.stageTokens(0, n)
			k := c.bare(b, wire.OpAdvise, &wire.AdviseRequest{Profile: c.profile, Record: 1, Tokens: uint32(n), BlockTokens: 16})
			b.ReportAllocs()
			for i := uint32(0); b.Loop(); i++ {
				// Each prompt parts from the others a quarter before its end.
				binary.LittleEndian.PutUint32(c.staging.Bytes()[3*n:], 1<<31+i)
				k.do(b)
			}
		})
	}
	plan := onePlan(c.lease(docs[0]), docs[0], 1)
	b.Run("compose/layer", func(b *testing.B) {
		var slot wire.ComposeReply
		c.call(wire.OpCompose, &wire.ComposeRequest{Profile: c.profile, Layer: 0, Plan: plan}, &slot)
		c.bare(b, wire.OpCompose, &wire.ComposeRequest{Profile: c.profile, Layer: 0, Plan: plan, Into: slot.Lease}).loop(b)
	})
	b.Run("acquire+release", func(b *testing.B) {
		acquire := c.bare(b, wire.OpAcquire, &wire.AcquireRequest{Profile: c.profile, Keys: keys[:1]})
		release := c.bare(b, wire.OpRelease, &wire.ReleaseRequest{Leases: make([]uint64, 1)})
		b.ReportAllocs()
		for b.Loop() {
			var a wire.AcquireReply
			must(b, a.Decode(acquire.do(b)))
			binary.LittleEndian.PutUint64(release.frame[wire.HeaderBytes+8:], a.Leases[0])
			release.do(b)
		}
	})
}
