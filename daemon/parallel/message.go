package parallel

import (
	"encoding/binary"
	"fmt"
	"math"

	"github.com/spliced-kv/spliced/policy/cost"
	"github.com/spliced-kv/spliced/policy/profile"
	"github.com/spliced-kv/spliced/tiering/peer"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// Paths of the requests on the peers' port.
const (
	offerPath   = "/peer/v1/offer"
	workPath    = "/peer/v1/work"
	resultsPath = "/peer/v1/results"
)

// Messages, little-endian. The size of a body, 1 MiB on the peers' port, and limits.go bound the
// number of jobs and bytes.
//
//	scope           fingerprint 32 | tenant tag 16
//	offer           scope | keys: count u16, each 32 | with primers: count u8, each 32
//	offer's answer  prefill: fixed, per token, per token squared f64 | held: a byte for each key
//	                | engines: count u8, each: id u64, queued µs u32, pieces u8
//	work            scope | plan u64 | jobs: count u16, each: number u32, engine u64, µs u32,
//	                role u8, head u32, tail u32, begin u32, holder: length u8, bytes | ids: count u32, each u32
//	                | primers: of each job that has one, 32
//	work's answer   count u16, each a verdict u8
//	results         plan u64 | seen u32 | wait ms u32 | end u8 | dropped: count u16, each u32
//	results' answer count u16, each: number u32, outcome u8
//
// An offer with primers has bit 15 of its count of keys set, and a job with a primer has bit 7 of
// its role set. Nodes of releases without primers refuse both.
const (
	primersFollow = 1 << 15
	primedRole    = 1 << 7

	scopeBytes   = 32 + 16
	maxOfferBody = scopeBytes + 2 + 32*MaxRows + 1 + 32*MaxPrimers
	maxOffer     = 3*8 + MaxRows + 1 + maxEngines*13
	maxWorkBody  = 1 << 20
	maxVerdicts  = 2 + 2*MaxRows
	maxPollBody  = 8 + 4 + 4 + 1 + 2 + 4*2*MaxRows
	maxResults   = 2 + 5*2*MaxRows
	maxHolder    = 253 // bytes of a node's name
)

type scopeTag struct {
	fingerprint profile.Fingerprint
	tenant      peer.TenantTag
}

type offerRequest struct {
	scope   scopeTag
	keys    []profile.SegmentKey
	primers []profile.PrimerID // an engine must have all of these
}

// offer is the answer of a node: its speed, the segments that it has, and its engines.
type offer struct {
	prefill cost.Prefill
	held    []bool // for each key of the request: is the segment cached there
	engines []engineOffer
}

type engineOffer struct {
	id     uint64
	queued float64 // ms of work before it would start a new job
	pieces bool
}

type workRequest struct {
	scope scopeTag
	plan  uint64
	jobs  []jobRequest
}

// jobRequest is a job as it is sent between nodes. Its number is unique within its plan.
type jobRequest struct {
	number uint32
	engine uint64
	micros uint32 // time until the result is no longer wanted
	spec   profile.SegmentSpec
	begin  int    // first token to compute; 0 = the whole segment
	holder string // node that has the segment of the tokens before begin; "" = the receiving node
	ids    []uint32
}

func (j *jobRequest) size() int {
	return 4 + 8 + 4 + 1 + 4*3 + 1 + len(j.holder) + 4 + 4*len(j.ids) + len(j.spec.Primer)
}

func (j *jobRequest) primed() bool { return j.spec.Primer != profile.PrimerID{} }

// verdict is a node's decision on a job that was sent to it.
type verdict uint8

const (
	declined verdict = iota
	taken
	verdicts
)

type resultsRequest struct {
	plan    uint64
	seen    int // number of results received so far
	waitMs  int
	end     bool     // the plan is over
	dropped []uint32 // numbers of jobs no longer wanted
}

// outcome says how a job ended.
type outcome uint8

const (
	done outcome = iota + 1
	lost         // its engine declined it or is gone, or its left piece did not arrive
	late
	outcomes
)

type result struct {
	number  uint32
	outcome outcome
}

var le = binary.LittleEndian

func appendScope(b []byte, s *scopeTag) []byte {
	return append(append(b, s.fingerprint[:]...), s.tenant[:]...)
}

func (q *offerRequest) append(b []byte) []byte {
	count := uint16(len(q.keys))
	if len(q.primers) > 0 {
		count |= primersFollow
	}
	b = le.AppendUint16(appendScope(b, &q.scope), count)
	for i := range q.keys {
		b = append(b, q.keys[i][:]...)
	}
	if len(q.primers) > 0 {
		b = append(b, byte(len(q.primers)))
	}
	for i := range q.primers {
		b = append(b, q.primers[i][:]...)
	}
	return b
}

func decodeOffer(b []byte) (q offerRequest, err error) {
	r := reader{b: b}
	q.scope = r.scope()
	count := int(r.u16())
	n := count &^ primersFollow
	if n > MaxRows {
		return q, invalid("%d keys", n)
	}
	for range n {
		q.keys = append(q.keys, profile.SegmentKey(r.take(32)))
	}
	if count == n {
		return q, r.end("offer")
	}
	if n = int(r.u8()); n == 0 || n > MaxPrimers {
		return q, invalid("%d primers", n)
	}
	for range n {
		q.primers = append(q.primers, profile.PrimerID(r.take(32)))
	}
	return q, r.end("offer")
}

func (o *offer) append(b []byte) []byte {
	for _, f := range [...]float64{o.prefill.Fixed, o.prefill.PerToken, o.prefill.PerTokenSquared} {
		b = le.AppendUint64(b, math.Float64bits(f))
	}
	for _, h := range o.held {
		b = append(b, oneIf(h))
	}
	b = append(b, byte(len(o.engines)))
	for _, e := range o.engines {
		b = le.AppendUint64(b, e.id)
		b = append(le.AppendUint32(b, microsOf(e.queued)), oneIf(e.pieces))
	}
	return b
}

// decodeOfferAnswer decodes the answer to an offer request with the given number of keys. It
// returns an error if any part is invalid, including the speed.
func decodeOfferAnswer(b []byte, keys int) (o offer, err error) {
	r := reader{b: b}
	for _, f := range [...]*float64{&o.prefill.Fixed, &o.prefill.PerToken, &o.prefill.PerTokenSquared} {
		if *f = math.Float64frombits(r.u64()); !(*f >= 0 && *f < 1e9) {
			return o, invalid("run time of %v ms", *f)
		}
	}
	o.held = make([]bool, keys)
	for i := range o.held {
		o.held[i] = r.flag()
	}
	n := int(r.u8())
	if n > maxEngines {
		return o, invalid("%d engines", n)
	}
	for range n {
		o.engines = append(o.engines, engineOffer{r.u64(), float64(r.u32()) / 1e3, r.flag()})
	}
	return o, r.end("offer")
}

func (q *workRequest) append(b []byte) []byte {
	b = le.AppendUint64(appendScope(b, &q.scope), q.plan)
	b = le.AppendUint16(b, uint16(len(q.jobs)))
	for i := range q.jobs {
		j := &q.jobs[i]
		b = le.AppendUint64(le.AppendUint32(b, j.number), j.engine)
		role := byte(j.spec.Role)
		if j.primed() {
			role |= primedRole
		}
		b = append(le.AppendUint32(b, j.micros), role)
		for _, n := range [...]int{j.spec.Head, j.spec.Tail, j.begin} {
			b = le.AppendUint32(b, uint32(n))
		}
		b = append(append(b, byte(len(j.holder))), j.holder...)
		b = le.AppendUint32(b, uint32(len(j.ids)))
		for _, id := range j.ids {
			b = le.AppendUint32(b, id)
		}
	}
	for i := range q.jobs {
		if j := &q.jobs[i]; j.primed() {
			b = append(b, j.spec.Primer[:]...)
		}
	}
	return b
}

func decodeWork(b []byte) (q workRequest, err error) {
	r := reader{b: b}
	q.scope, q.plan = r.scope(), r.u64()
	n := int(r.u16())
	if n == 0 || n > 2*MaxRows {
		return q, invalid("%d jobs", n)
	}
	var primed []int // indices of jobs with a primer
	for range n {
		j := jobRequest{number: r.u32(), engine: r.u64(), micros: r.u32()}
		role := r.u8()
		j.spec.Role = profile.Role(role &^ primedRole)
		if role&primedRole != 0 {
			primed = append(primed, len(q.jobs))
		}
		for _, n := range [...]*int{&j.spec.Head, &j.spec.Tail, &j.begin} {
			*n = int(r.u32())
		}
		j.holder = string(r.take(int(r.u8())))
		ids := r.count(4)
		if ids == 0 || ids > MaxJobTokens || j.begin >= ids || len(j.holder) > maxHolder {
			return q, invalid("job of %d tokens from %d on", ids, j.begin)
		}
		j.ids, j.spec.Tokens = make([]uint32, ids), ids
		for i := range j.ids {
			j.ids[i] = r.u32()
		}
		q.jobs = append(q.jobs, j)
	}
	for _, i := range primed {
		j := &q.jobs[i]
		copy(j.spec.Primer[:], r.take(len(j.spec.Primer)))
		if !j.primed() {
			return q, invalid("job with a primer that has no name")
		}
	}
	return q, r.end("work")
}

func appendVerdicts(b []byte, list []verdict) []byte {
	b = le.AppendUint16(b, uint16(len(list)))
	for _, v := range list {
		b = append(b, byte(v))
	}
	return b
}

func decodeVerdicts(b []byte, jobs int) ([]verdict, error) {
	r := reader{b: b}
	if n := int(r.u16()); n != jobs {
		return nil, invalid("%d verdicts on %d jobs", n, jobs)
	}
	list := make([]verdict, jobs)
	for i := range list {
		if list[i] = verdict(r.u8()); list[i] >= verdicts {
			return nil, invalid("verdict %d", list[i])
		}
	}
	return list, r.end("verdicts")
}

func (q *resultsRequest) append(b []byte) []byte {
	b = le.AppendUint32(le.AppendUint64(b, q.plan), uint32(q.seen))
	b = append(le.AppendUint32(b, uint32(q.waitMs)), oneIf(q.end))
	b = le.AppendUint16(b, uint16(len(q.dropped)))
	for _, n := range q.dropped {
		b = le.AppendUint32(b, n)
	}
	return b
}

func decodeResults(b []byte) (q resultsRequest, err error) {
	r := reader{b: b}
	q.plan, q.seen, q.waitMs, q.end = r.u64(), int(r.u32()), int(r.u32()), r.flag()
	n := int(r.u16())
	if n > 2*MaxRows {
		return q, invalid("%d dropped jobs", n)
	}
	for range n {
		q.dropped = append(q.dropped, r.u32())
	}
	return q, r.end("results")
}

func appendResults(b []byte, list []result) []byte {
	b = le.AppendUint16(b, uint16(len(list)))
	for _, x := range list {
		b = append(le.AppendUint32(b, x.number), byte(x.outcome))
	}
	return b
}

func decodeResultsAnswer(b []byte) ([]result, error) {
	r := reader{b: b}
	n := int(r.u16())
	if n > 2*MaxRows {
		return nil, invalid("%d results", n)
	}
	list := make([]result, n)
	for i := range list {
		list[i] = result{r.u32(), outcome(r.u8())}
		if x := list[i].outcome; !r.short && (x < done || x >= outcomes) {
			return nil, invalid("outcome %d", x)
		}
	}
	return list, r.end("results")
}

func invalid(format string, args ...any) error {
	return fmt.Errorf("parallel: "+format+": %w", append(args, tier.ErrInvalid)...)
}

func oneIf(b bool) byte {
	if b {
		return 1
	}
	return 0
}

// microsOf converts milliseconds to whole microseconds, saturated.
func microsOf(ms float64) uint32 { return uint32(min(max(ms*1e3, 0), math.MaxUint32)) }

// reader decodes a message. Reads beyond the end return zeros and set short, which end reports.
type reader struct {
	b     []byte
	short bool
}

func (r *reader) take(n int) []byte {
	if n > len(r.b) {
		r.short, r.b = true, nil
		return make([]byte, n) // all callers pass an n of at most 255
	}
	b := r.b[:n:n]
	r.b = r.b[n:]
	return b
}

func (r *reader) u8() byte    { return r.take(1)[0] }
func (r *reader) u16() uint16 { return le.Uint16(r.take(2)) }
func (r *reader) u32() uint32 { return le.Uint32(r.take(4)) }
func (r *reader) u64() uint64 { return le.Uint64(r.take(8)) }

// flag reads a byte that must be 0 or 1.
func (r *reader) flag() bool {
	b := r.u8()
	r.short = r.short || b > 1
	return b == 1
}

func (r *reader) scope() (s scopeTag) {
	copy(s.fingerprint[:], r.take(32))
	copy(s.tenant[:], r.take(16))
	return s
}

// count reads a number of elements of a given size, which must all be present.
func (r *reader) count(size int) int {
	n := int64(r.u32())
	if n*int64(size) > int64(len(r.b)) {
		r.short, r.b = true, nil
		return 0
	}
	return int(n)
}

func (r *reader) end(what string) error {
	if r.short || len(r.b) > 0 {
		return invalid("%s has the wrong length", what)
	}
	return nil
}
