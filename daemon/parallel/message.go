package parallel

import (
	"fmt"
	"math"

	"github.com/spliced-kv/spliced/policy/coding"
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

func (s *scopeTag) fields(c *coding.Cursor) {
	c.Raw(s.fingerprint[:])
	c.Raw(s.tenant[:])
}

// read names the message in the error of reading it.
func read(what string, err error) error {
	if err != nil {
		return invalid("%s: %w", what, err)
	}
	return nil
}

// Fields implements coding.Message.
func (q *offerRequest) Fields(c *coding.Cursor) {
	q.scope.fields(c)
	count := len(q.keys)
	if len(q.primers) > 0 {
		count |= primersFollow
	}
	coding.U16(c, &count)
	n := count &^ primersFollow
	if n > MaxRows {
		c.Fail("%d keys", n)
	}
	if c.Reading() && c.Err() == nil {
		q.keys = make([]profile.SegmentKey, n)
	}
	for i := range q.keys {
		c.Raw(q.keys[i][:])
	}
	if count == n {
		return
	}
	if coding.List(c, &q.primers, 1, 32, MaxPrimers); len(q.primers) == 0 {
		c.Fail("no primers")
	}
	for i := range q.primers {
		c.Raw(q.primers[i][:])
	}
}

func (q *offerRequest) append(b []byte) []byte { return coding.Append(b, q) }

func decodeOffer(b []byte) (q offerRequest, err error) {
	err = read("offer", coding.Parse(b, &q))
	return q, err
}

// Fields implements coding.Message.
func (o *offer) Fields(c *coding.Cursor) {
	for _, f := range [...]*float64{&o.prefill.Fixed, &o.prefill.PerToken, &o.prefill.PerTokenSquared} {
		if coding.F64(c, f); !(*f >= 0 && *f < 1e9) {
			c.Fail("run time of %v ms", *f)
		}
	}
	for i := range o.held {
		c.Flag(&o.held[i])
	}
	coding.List(c, &o.engines, 1, 1, maxEngines)
	for i := range o.engines {
		e := &o.engines[i]
		micros := microsOf(e.queued)
		coding.U64(c, &e.id)
		coding.U32(c, &micros)
		c.Flag(&e.pieces)
		if c.Reading() {
			e.queued = float64(micros) / 1e3
		}
	}
}

func (o *offer) append(b []byte) []byte { return coding.Append(b, o) }

// decodeOfferAnswer decodes the answer to an offer request with the given number of keys. It
// returns an error if any part is invalid, including the speed.
func decodeOfferAnswer(b []byte, keys int) (offer, error) {
	o := offer{held: make([]bool, keys)}
	err := read("offer's answer", coding.Parse(b, &o))
	return o, err
}

func (j *jobRequest) fields(c *coding.Cursor) (primed bool) {
	coding.U32(c, &j.number)
	coding.U64(c, &j.engine)
	coding.U32(c, &j.micros)
	role := byte(j.spec.Role)
	if j.primed() {
		role |= primedRole
	}
	coding.U8(c, &role)
	if c.Reading() {
		j.spec.Role = profile.Role(role &^ primedRole)
	}
	coding.U32(c, &j.spec.Head, &j.spec.Tail, &j.begin)
	coding.Text(c, &j.holder, 1, maxHolder)
	if c.U32s(&j.ids, MaxJobTokens); j.begin >= len(j.ids) {
		c.Fail("job of %d tokens from %d on", len(j.ids), j.begin)
	}
	if c.Reading() {
		j.spec.Tokens = len(j.ids)
	}
	return role&primedRole != 0
}

// Fields implements coding.Message.
func (q *workRequest) Fields(c *coding.Cursor) {
	q.scope.fields(c)
	coding.U64(c, &q.plan)
	if coding.List(c, &q.jobs, 2, 1, 2*MaxRows); len(q.jobs) == 0 {
		c.Fail("no jobs")
	}
	var primed []int // indices of jobs with a primer
	for i := range q.jobs {
		if q.jobs[i].fields(c) {
			primed = append(primed, i)
		}
	}
	for _, i := range primed {
		j := &q.jobs[i]
		if c.Raw(j.spec.Primer[:]); !j.primed() {
			c.Fail("job with a primer that has no name")
		}
	}
}

func (q *workRequest) append(b []byte) []byte { return coding.Append(b, q) }

func decodeWork(b []byte) (q workRequest, err error) {
	err = read("work", coding.Parse(b, &q))
	return q, err
}

func verdictFields(c *coding.Cursor, list []verdict) {
	if n := c.Len(len(list), 2, 1, len(list)); n != len(list) {
		c.Fail("%d verdicts on %d jobs", n, len(list))
	}
	for i := range list {
		if coding.U8(c, &list[i]); list[i] >= verdicts {
			c.Fail("verdict %d", list[i])
		}
	}
}

func appendVerdicts(b []byte, list []verdict) []byte {
	c := coding.Writer(b)
	verdictFields(&c, list)
	return c.Bytes()
}

func decodeVerdicts(b []byte, jobs int) ([]verdict, error) {
	c, list := coding.Reader(b), make([]verdict, jobs)
	verdictFields(&c, list)
	return list, read("verdicts", c.End())
}

// Fields implements coding.Message.
func (q *resultsRequest) Fields(c *coding.Cursor) {
	coding.U64(c, &q.plan)
	coding.U32(c, &q.seen, &q.waitMs)
	c.Flag(&q.end)
	coding.List(c, &q.dropped, 2, 4, 2*MaxRows)
	for i := range q.dropped {
		coding.U32(c, &q.dropped[i])
	}
}

func (q *resultsRequest) append(b []byte) []byte { return coding.Append(b, q) }

func decodeResults(b []byte) (q resultsRequest, err error) {
	err = read("results", coding.Parse(b, &q))
	return q, err
}

func resultFields(c *coding.Cursor, list *[]result) {
	coding.List(c, list, 2, 1, 2*MaxRows)
	for i := range *list {
		x := &(*list)[i]
		coding.U32(c, &x.number)
		if coding.U8(c, &x.outcome); x.outcome < done || x.outcome >= outcomes {
			c.Fail("outcome %d", x.outcome)
		}
	}
}

func appendResults(b []byte, list []result) []byte {
	c := coding.Writer(b)
	resultFields(&c, &list)
	return c.Bytes()
}

func decodeResultsAnswer(b []byte) (list []result, err error) {
	c := coding.Reader(b)
	resultFields(&c, &list)
	return list, read("results' answer", c.End())
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
