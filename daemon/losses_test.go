package daemon

import (
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/spliced-kv/spliced/connector/wire"
)

// withLosses is attach for a client that reports losses and accepts some.
func withLosses(t *testing.T, r *running) *rawClient {
	c := attachWith(t, r.Socket(), wire.FeatureLosses)
	c.register(testProfile(1))
	return c
}

// advised asks about a prompt of some segments in memory, and 900 tokens behind them.
func (c *rawClient) advised(segments int, limit wire.AdviseLimit) (r wire.AdviseReply) {
	c.t.Helper()
	const tokens = 2000
	q := wire.AdviseRequest{Profile: c.profile, Tokens: uint32(tokens*segments + 900), TokenOff: 64, SeamTokens: uint32(16 * segments), Limit: limit}
	for i := range segments {
		q.SegmentBegin, q.SegmentTokens = append(q.SegmentBegin, uint32(tokens*i)), append(q.SegmentTokens, tokens)
		q.SegmentStatus, q.SegmentTier = append(q.SegmentStatus, uint8(wire.StatusHit)), append(q.SegmentTier, wire.TierDRAM)
	}
	c.call(wire.OpAdvise, &q, &r)
	return r
}

func TestAdviceKeepsToTheLossThatARequestAccepts(t *testing.T) {
	r := startDaemon(t, testConfig(t), nil)
	c := withLosses(t, r)
	c.stageTokens(64, 6900)
	limit := func(most float64) wire.AdviseLimit { return wire.AdviseLimit{Present: true, MaxLoss: most} }
	check := func(what string, a wire.AdviseReply, splicing uint8) {
		t.Helper()
		spliced := splicing != wire.SplicingNone
		if a.Loss.Splicing != splicing || (a.Way == wire.WaySplice) != spliced || math.IsInf(a.WayMicros[wire.WaySplice-1], 1) == spliced {
			t.Errorf("%s: way %d of %v, %+v, want splicing %d", what, a.Way, a.WayMicros, a.Loss, splicing)
		}
	}
	before := c.advised(3, wire.AdviseLimit{})
	if before.Loss.Present || before.Way != wire.WaySplice {
		t.Fatalf("without a limit: %+v", before)
	}
	check("anything, of which nothing is known", c.advised(3, limit(1)), wire.SplicingAsked)
	check("nothing is known", c.advised(3, limit(0.5)), wire.SplicingNone)
	c.report(wire.ReportRequest{Losses: wire.ReportLosses{
		Present: true, Offline: 1, Compared: []uint32{98, 0, 98, 0}, Changed: []uint32{9, 0, 1, 0},
	}})
	within := c.advised(3, limit(0.2))
	check("within", within, wire.SplicingAsked)
	if l := within.Loss; l.Asked != 0.1 || l.Refreshed != 0.02 {
		t.Errorf("losses %+v, want 0.1 and 0.02", l)
	}
	last := c.advised(3, limit(0.05))
	check("with the last in context", last, wire.SplicingRefreshed)
	if at := wire.WaySplice - 1; last.WayMicros[at] < within.WayMicros[at]+1000 {
		t.Errorf("the last segment is not computed: %v, with it %v", last.WayMicros[at], within.WayMicros[at])
	}
	check("there is only one", c.advised(1, limit(0.05)), wire.SplicingNone)
	check("beyond", c.advised(3, limit(0.01)), wire.SplicingNone)
	if after := c.advised(3, wire.AdviseLimit{}); after.Way != before.Way || after.WayMicros[wire.WaySplice-1] != before.WayMicros[wire.WaySplice-1] {
		t.Errorf("without a limit: %+v, before %+v", after, before)
	}
}

func TestLossesThatCannotBeAreRefused(t *testing.T) {
	d := startDaemon(t, testConfig(t), nil)
	c := withLosses(t, d)
	report := func(offline uint8, compared, changed uint32) *wire.ReportRequest {
		return &wire.ReportRequest{Profile: c.profile, Losses: wire.ReportLosses{
			Present: true, Offline: offline, Compared: []uint32{0, compared, 0, 0}, Changed: []uint32{0, changed, 0, 0},
		}}
	}
	c.refused(wire.OpReport, report(0, 1, 2), wire.Invalid, "losses: 2 of 1")
	c.refused(wire.OpReport, report(2, 1, 1), wire.Invalid, "offline 2")
	c.refused(wire.OpReport, report(0, 1, 1), wire.Invalid, "of 1 requests, in a report of 0 comparisons")
	over := report(0, math.MaxUint32, 0) // the sum does not fit 32 bits
	over.Compared, over.Losses.Compared[0] = 8, 9
	c.refused(wire.OpReport, over, wire.Invalid, "of 4294967304 requests, in a report of 8 comparisons")
	for _, m := range []wire.ReportRequest{{Off: 1}, {Compared: 1}, {Compared: 1, Failed: 1}} {
		m.Profile, m.Losses = c.profile, report(1, 1, 1).Losses
		c.refused(wire.OpReport, &m, wire.Invalid, "offline, with off")
	}
	if rows := d.canary.List(); len(rows) != 0 {
		t.Errorf("kept %+v", rows)
	}
	advise := func(l wire.AdviseLimit) *wire.AdviseRequest {
		l.Present = true
		return &wire.AdviseRequest{Profile: c.profile, Tokens: 20, Limit: l}
	}
	for _, most := range []float64{-0.1, 1.1, math.NaN()} {
		c.refused(wire.OpAdvise, advise(wire.AdviseLimit{MaxLoss: most}), wire.Invalid, "max loss")
	}
	c.refused(wire.OpAdvise, advise(wire.AdviseLimit{Primed: 2}), wire.Invalid, "primed 2")
	c.refused(wire.OpAdvise, advise(wire.AdviseLimit{Refreshed: 2}), wire.Invalid, "refreshed 2")
	served := wire.ServedRequest{Profile: c.profile, Way: wire.WayRecompute, Tokens: 20, Loss: wire.ServedLoss{Present: true, Expected: 1.5}}
	c.refused(wire.OpServed, &served, wire.Invalid, "loss: 1.5")

	old := attach(t, d.Socket())
	old.register(testProfile(1))
	c.profile = old.profile
	for op, m := range map[wire.Op]wire.Message{
		wire.OpReport: report(0, 1, 1), wire.OpAdvise: advise(wire.AdviseLimit{MaxLoss: 1}),
		wire.OpServed: &wire.ServedRequest{Profile: c.profile, Way: wire.WayRecompute, Tokens: 20, Loss: wire.ServedLoss{Present: true}},
	} {
		old.refused(op, m, wire.Invalid, "has not asked for that feature")
	}
}

func TestLossesAreShown(t *testing.T) {
	config := testConfig(t)
	config.AdminSocket, config.HTTP = "", "127.0.0.1:0"
	d := startDaemon(t, config, nil)
	c := withLosses(t, d)
	c.report(wire.ReportRequest{Compared: 62, Bound: 1, Losses: wire.ReportLosses{
		Present: true, Compared: []uint32{2, 60, 0, 0}, Changed: []uint32{1, 5, 0, 0},
	}})
	c.report(wire.ReportRequest{Losses: wire.ReportLosses{Present: true, Offline: 1, Compared: []uint32{0, 38, 0, 0}, Changed: []uint32{0, 4, 0, 0}}})
	rows := d.view.Canaries()
	if len(rows) != 1 || len(rows[0].Losses) != 2 || rows[0].Bound != 1 {
		t.Fatalf("shown %+v", rows)
	}
	few, primed := rows[0].Losses[0], rows[0].Losses[1]
	if few.Primed || few.Compared != 2 || few.Changed != 1 || few.Expected != nil {
		t.Errorf("of two comparisons: %+v", few)
	}
	if !primed.Primed || primed.OfflineCompared != 38 || primed.OfflineChanged != 4 || primed.Expected == nil || *primed.Expected != 0.1 {
		t.Errorf("of a hundred: %+v", primed)
	}
	labels := fmt.Sprintf(`{primed="true",profile="%.12s",refreshed="false",tenant="default"}`, rows[0].Profile)
	text := d.metricsText(t)
	for _, line := range []string{"expected_loss" + labels + " 0.1", "loss_compared_total" + labels + " 60", "loss_changed_total" + labels + " 5"} {
		if !strings.Contains(text, "\nspliced_"+line+"\n") {
			t.Errorf("metrics have no %s", line)
		}
	}
	if strings.Count(text, "\nspliced_expected_loss{") != 1 {
		t.Error("an expected loss of two comparisons is among the metrics")
	}
	served := wire.ServedRequest{Profile: c.profile, Way: wire.WayRecompute, Tokens: 20}
	var reply wire.ServedReply
	c.call(wire.OpServed, &served, &reply)
	served.Loss = wire.ServedLoss{Present: true, Expected: 0.25}
	c.call(wire.OpServed, &served, &reply)
	if r, err := d.view.Request(reply.Number); err != nil || r.ExpectedLoss == nil || *r.ExpectedLoss != 0.25 {
		t.Errorf("served %+v: %v", r, err)
	}
	if r, err := d.view.Request(reply.Number - 1); err != nil || r.ExpectedLoss != nil {
		t.Errorf("served without: %+v: %v", r, err)
	}
}
