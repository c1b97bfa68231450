package api

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strings"
	"time"

	"github.com/valyala/fasthttp"
)

// Bounds of a lookup of where a prompt is cached.
const (
	MaxLocateTokens   = 1 << 17 // token ids; longer prompts are looked up by their keys
	MaxLocatePrefixes = 1024
	MaxLocateSegments = 1024
	MaxLocateNodes    = 1024 // in an answer
	DefaultNodes      = 64
	maxPromptTokens   = 1 << 20
	maxSeamTokens     = 4096

	maxLocateBytes = 1 << 20     // size of a body: 2^17 token ids of six digits, or 1,024 keys of each kind
	maxLocating    = 8           // concurrent queries
	locatePatience = time.Second // how long a further query waits before it is refused
)

// LocateQuery asks which nodes of the cluster have which parts of a prompt. It contains
// either keys, as engines compute them, or token ids, from which the node computes the keys
// for a profile registered by an engine. Token ids are neither logged nor stored.
type LocateQuery struct {
	Tenant  string `json:"tenant,omitempty"` // empty = the default tenant
	Profile string `json:"profile"`          // fingerprint, or the model's name if only one profile has it
	// Accept restricts the objects. exact: no spliced checkpoints and no segments; empty = all.
	Accept string `json:"accept,omitempty" enum:",exact"`
	Limit  int    `json:"limit,omitempty"`  // maximum number of nodes in the answer, 1 to MaxLocateNodes; 0 = DefaultNodes
	Tokens int    `json:"tokens,omitempty"` // number of tokens of the prompt; required with keys, and with TokenIDs their number or 0

	// Prefixes are ascending by tokens, at most MaxLocatePrefixes. They must be absent with
	// TokenIDs.
	Prefixes []LocatePrefix `json:"prefixes,omitempty"`

	// TokenIDs are the ids of the prompt's tokens, at most MaxLocateTokens; absent = the query
	// contains keys.
	TokenIDs []uint32 `json:"token_ids,omitempty"`
	// BlockTokens is the engine's block size, and only allowed with TokenIDs; 0 = prefixes are
	// not looked up.
	BlockTokens int `json:"block_tokens,omitempty"`
	// Positions are possible ends of prefixes in tokens, ascending, at most MaxLocatePrefixes, and
	// only allowed with BlockTokens. If the list is empty, the node looks up the end of every
	// block. If a prompt has too many blocks for that, it looks up the ends of the last blocks and
	// of every n-th earlier one.
	Positions []int `json:"positions,omitempty"`
	// SeamTokens is the seam width with which the engine splices. It is only allowed with
	// TokenIDs.
	SeamTokens int `json:"seam_tokens,omitempty"`
	// Primer is the id of the primer of segments that begin at token PrimedFrom or later; nil = no
	// segment has a primer. It is only allowed with TokenIDs. Every other segment, and one at token
	// 0, is looked up as one without a primer.
	Primer *Digest `json:"primer,omitempty"`
	// PrimedFrom is the first token at which a segment with a primer can begin.
	PrimedFrom int `json:"primed_from,omitempty"`

	// Segments of the prompt, ascending, at most MaxLocateSegments.
	Segments []LocateSegment `json:"segments,omitempty"`
}

// LocatePrefix is a prefix of the prompt for which a checkpoint may be cached.
type LocatePrefix struct {
	Hash   Digest `json:"hash"`
	Tokens int    `json:"tokens"` // length of the prefix
}

// LocateSegment is tokens [Begin, Begin+Tokens) of the prompt.
type LocateSegment struct {
	Begin  int     `json:"begin"`         // position of its first token
	Tokens int     `json:"tokens"`        // length of the segment
	Key    *Digest `json:"key,omitempty"` // required in a query with keys, not allowed with token ids
	// Excluded is the number of tokens of the segment that are recomputed, at both ends together.
	// It must be 0 in a query with token ids, where the node knows the number.
	Excluded int `json:"excluded_tokens,omitempty"`
}

// Located is the answer to a LocateQuery. The node that answers knows exactly what it has itself.
// Of other nodes it returns what it believes that they have.
type Located struct {
	Tokens int `json:"tokens"` // number of tokens of the prompt
	// RecomputeMillis is the time to prefill the whole prompt.
	RecomputeMillis float64 `json:"recompute_ms"`
	Measured        bool    `json:"measured"` // an engine of this node measured prefills; otherwise RecomputeMillis is derived from the setting prefill-speed
	// Best is the node with the shortest time to first token, including the time to fetch
	// from peers; absent if no node saves time.
	Best    string `json:"best,omitempty"`
	Members int    `json:"members"` // number of compared members, including this node
	// ExpectedFalse is the expected number of keys that are believed to be on another node although
	// no node has them. If it is more than a few hundredths, long prefixes on other nodes are
	// doubtful. A query with fewer positions makes it smaller.
	ExpectedFalse float64       `json:"expected_false"`
	Nodes         []LocatedNode `json:"nodes"` // best first; always includes this node
}

// LocatedNode is the part of a prompt that one node has.
type LocatedNode struct {
	Node string `json:"node"`           // name in the cluster
	Self bool   `json:"self"`           // it is this node
	Peer string `json:"peer,omitempty"` // address of its peers' port; absent without a cluster

	PrefixTokens  int     `json:"prefix_tokens"`  // tokens of its longest checkpoint
	SegmentTokens int     `json:"segment_tokens"` // tokens of segments after that checkpoint
	Tokens        int     `json:"held_tokens"`    // sum of PrefixTokens and SegmentTokens
	Share         float64 `json:"share"`          // share of the prompt's tokens that it has, 0 to 1
	// MemoryTokens is the number of tokens that the node has in memory. It is absent for a node
	// other than the one that answers, since the tiers of other nodes are unknown.
	MemoryTokens *int `json:"memory_tokens,omitempty"`
	// DiskTokens is the number of tokens that the node has only on disk. It is absent where
	// MemoryTokens is.
	DiskTokens *int `json:"disk_tokens,omitempty"`
	// SavedMillis is the reduction of the time to first token compared with a full prefill, if only
	// objects of this node are used. The objects of a node other than the one that answers are
	// assumed to be in memory.
	SavedMillis float64 `json:"saved_ms"`
	// PeerTokens is the number of additional tokens that the node could fetch from other members in
	// less time than it needs to compute them.
	PeerTokens int `json:"peer_tokens"`
	// SavedWithPeersMillis is the saved time if the node also fetches the PeerTokens.
	SavedWithPeersMillis float64 `json:"saved_with_peers_ms"`

	Complete bool       `json:"complete"`        // all objects of the node are known
	AsOf     *time.Time `json:"as_of,omitempty"` // when the node last had no more changes to report; nil = this node, or not yet
}

// Validate lists all errors of a query, and sets defaults.
func (q *LocateQuery) Validate() error {
	p := params{}
	byTokens := len(q.TokenIDs) > 0
	if len(q.Tenant) > 128 {
		p.refuse("tenant", "has %d bytes, at most 128", len(q.Tenant))
	}
	if q.Profile == "" || len(q.Profile) > 256 {
		p.refuse("profile", "has %d bytes, want 1 to 256", len(q.Profile))
	}
	if q.Accept != "" && q.Accept != "exact" {
		p.refuse("accept", "is neither exact nor empty")
	}
	q.Limit = cmp.Or(q.Limit, DefaultNodes)
	if q.Limit < 1 || q.Limit > MaxLocateNodes {
		p.refuse("limit", "%d is not 1 to %d", q.Limit, MaxLocateNodes)
	}
	if byTokens {
		q.checkTokens(&p)
	} else {
		q.checkKeys(&p)
	}
	q.checkSegments(&p, byTokens)
	if len(p.bad) == 0 {
		return nil
	}
	return newProblem(fasthttp.StatusBadRequest, CodeInvalid, counted(len(p.bad), "bad field"), p.bad...)
}

func (q *LocateQuery) checkTokens(p *params) {
	n := len(q.TokenIDs)
	if n > MaxLocateTokens {
		p.refuse("token_ids", "%d ids, at most %d: ask by keys", n, MaxLocateTokens)
	}
	q.Tokens = cmp.Or(q.Tokens, n)
	if q.Tokens != n {
		p.refuse("tokens", "%d, and %d token ids are given", q.Tokens, n)
	}
	if len(q.Prefixes) > 0 {
		p.refuse("prefixes", "given beside token_ids")
	}
	if q.BlockTokens < 0 || q.BlockTokens > maxPromptTokens {
		p.refuse("block_tokens", "%d is not 0 to %d", q.BlockTokens, maxPromptTokens)
	}
	if q.SeamTokens < 0 || q.SeamTokens > maxSeamTokens {
		p.refuse("seam_tokens", "%d is not 0 to %d", q.SeamTokens, maxSeamTokens)
	}
	if q.PrimedFrom < 0 || q.PrimedFrom > n || q.PrimedFrom > 0 && q.Primer == nil {
		p.refuse("primed_from", "%d is not 0 to %d, or there is no primer", q.PrimedFrom, n)
	}
	if len(q.Positions) > MaxLocatePrefixes || len(q.Positions) > 0 && q.BlockTokens == 0 {
		p.refuse("positions", "%d positions, at most %d, and only with block_tokens", len(q.Positions), MaxLocatePrefixes)
	}
	last := 0
	for _, at := range q.Positions {
		if at <= last || at > n {
			p.refuse("positions", "%d behind %d in a prompt of %d tokens", at, last, n)
			break
		}
		last = at
	}
}

func (q *LocateQuery) checkKeys(p *params) {
	if q.Tokens < 1 || q.Tokens > maxPromptTokens {
		p.refuse("tokens", "%d is not 1 to %d", q.Tokens, maxPromptTokens)
	}
	if len(q.Prefixes) > MaxLocatePrefixes {
		p.refuse("prefixes", "%d prefixes, at most %d", len(q.Prefixes), MaxLocatePrefixes)
	}
	if q.BlockTokens != 0 || q.SeamTokens != 0 || len(q.Positions) > 0 || q.Primer != nil || q.PrimedFrom != 0 {
		p.refuse("token_ids", "none are given, and block_tokens, seam_tokens, primer, primed_from or positions are")
	}
	last := 0
	for i := range q.Prefixes {
		if at := q.Prefixes[i].Tokens; at <= last || at > q.Tokens {
			p.refuse("prefixes", "%d tokens behind %d in a prompt of %d tokens", at, last, q.Tokens)
			break
		}
		last = q.Prefixes[i].Tokens
	}
}

func (q *LocateQuery) checkSegments(p *params, byTokens bool) {
	if len(q.Segments) > MaxLocateSegments {
		p.refuse("segments", "%d segments, at most %d", len(q.Segments), MaxLocateSegments)
	}
	end := 0
	for i := range q.Segments {
		s := &q.Segments[i]
		if s.Begin < end || s.Tokens < 1 || s.Tokens > q.Tokens-s.Begin {
			p.refuse("segments", "segment %d: %d tokens from token %d on, behind %d in a prompt of %d tokens", i, s.Tokens, s.Begin, end, q.Tokens)
			break
		}
		if (s.Key == nil) != byTokens {
			p.refuse("segments", "segment %d: either all have a key, or token_ids are given", i)
			break
		}
		if s.Excluded < 0 || s.Excluded >= s.Tokens || byTokens && s.Excluded != 0 {
			p.refuse("segments", "segment %d: %d of %d tokens are excluded", i, s.Excluded, s.Tokens)
			break
		}
		end = s.Begin + s.Tokens
	}
}

// locate answers where a prompt is cached. No part of the request is logged.
func (s *Server) locate(ctx *fasthttp.RequestCtx, _ string) error {
	if err := noParams(ctx); err != nil {
		return err
	}
	leave, err := s.enterLocate()
	if err != nil {
		return err
	}
	defer leave()
	var q LocateQuery
	if err := decodeBody(ctx.PostBody(), &q); err != nil {
		return err
	}
	if err := q.Validate(); err != nil {
		return err
	}
	found, err := s.shown().Catalogue.Locate(&q)
	if err != nil {
		return fmt.Errorf("locate: %w", err)
	}
	found.Nodes = orEmpty(found.Nodes)
	return writeJSON(ctx, found)
}

// enterLocate waits until fewer than maxLocating queries run, but no longer than locatePatience.
// The caller calls the returned function leave when its query ends.
func (s *Server) enterLocate() (leave func(), err error) {
	select {
	case s.locating <- struct{}{}:
	default:
		patience := time.NewTimer(locatePatience)
		defer patience.Stop()
		select {
		case s.locating <- struct{}{}:
		case <-patience.C:
			s.turnedAway.WithLabelValues("locate").Inc()
			return nil, fmt.Errorf("locate: %d queries are running, the maximum: %w", maxLocating, ErrUnavailable)
		case <-s.stopping.Done():
			return nil, fmt.Errorf("locate: the node is stopping: %w", ErrUnavailable)
		}
	}
	return func() { <-s.locating }, nil
}

// fieldName matches a name that an error may quote: it contains no token ids.
var fieldName = regexp.MustCompile(`^"[A-Za-z_]{1,40}"$`)

// decodeBody decodes a body that is exactly one JSON document. Its errors quote nothing from the
// body, which may contain token ids, but the name of an unknown field.
func decodeBody(body []byte, out any) error {
	d := json.NewDecoder(bytes.NewReader(body))
	d.DisallowUnknownFields()
	err := d.Decode(out)
	if err == nil {
		if _, err = d.Token(); errors.Is(err, io.EOF) {
			return nil
		}
		return fmt.Errorf("body: more than one JSON document: %w", ErrInvalid)
	}
	var syntax *json.SyntaxError
	var kind *json.UnmarshalTypeError
	switch {
	case errors.As(err, &syntax):
		return fmt.Errorf("body: not JSON at byte %d of %d: %w", syntax.Offset, len(body), ErrInvalid)
	case errors.As(err, &kind):
		return fmt.Errorf("body: %s at byte %d is not of type %s: %w", kind.Field, kind.Offset, kind.Type, ErrInvalid)
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return fmt.Errorf("body: the JSON document is incomplete: %w", ErrInvalid)
	case errors.Is(err, ErrInvalid): // of a Digest
		return fmt.Errorf("body: a hash or key is not 64 hex digits: %w", ErrInvalid)
	}
	if name, ok := strings.CutPrefix(err.Error(), "json: unknown field "); ok && fieldName.MatchString(name) {
		return fmt.Errorf("body: unknown field %s: %w", name, ErrInvalid)
	}
	return fmt.Errorf("body: a field is unknown or has the wrong type: %w", ErrInvalid)
}
