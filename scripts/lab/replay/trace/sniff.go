package trace

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
)

// shape is the kind of a first line.
type shape int

const (
	shapeUnknown shape = iota
	shapeOwn
	shapeMooncake
	shapeOrders
	shapePassages
	shapeDepths
	shapeTrajectories // companion of shapeOrders
	shapeLengths      // companion of shapePassages
	shapeCounts       // lengths of prompts without content
)

// sniff returns the shape of a file that begins with this line.
func sniff(line []byte) shape {
	if len(line) > 0 && line[0] == '{' {
		return sniffJSON(line)
	}
	if string(line) == depthsHead {
		return shapeDepths
	}
	if countsHead(string(line)) {
		return shapeCounts
	}
	fields, err := integers(nil, line, maxTokens)
	switch {
	case err == nil && len(fields) == 2:
		return shapeLengths
	case err == nil && len(fields) > 2:
		return shapePassages
	}
	var s sessions
	if f := bytes.Split(line, []byte{','}); len(f) == 5 && bytes.ContainsRune(f[0], '.') {
		if err := s.decode(line, &Request{}); errors.Is(err, errNoTexts) {
			return shapeOrders
		}
	}
	return shapeUnknown
}

func sniffJSON(line []byte) shape {
	var fields map[string]json.RawMessage
	if json.Unmarshal(line, &fields) != nil {
		return shapeUnknown
	}
	has := func(name string) bool { return fields[name] != nil }
	switch {
	case has("spliced_trace"):
		return shapeOwn
	case has("hash_ids"):
		return shapeMooncake
	case has("msgs"):
		return shapeTrajectories
	case has("input_length") || has("ContextTokens"):
		return shapeCounts
	}
	return shapeUnknown
}

// countsHead recognises tables that only have a time and counts of tokens, such as the
// Azure LLM inference traces.
func countsHead(line string) bool {
	names := strings.Split(strings.ToLower(line), ",")
	counts := 0
	for _, n := range names {
		if strings.HasSuffix(n, "tokens") || strings.HasSuffix(n, "_length") {
			counts++
		}
	}
	return counts > 0 && len(names) <= counts+2
}

// refuse explains why a file cannot be replayed.
func refuse(s shape, line []byte) (Code, error) {
	switch s {
	case shapeCounts:
		return NoContent, errors.New("this trace has lengths and times of prompts but not what is in them, " +
			"so nothing says which prompts share a prefix or a segment: there is no hit rate to simulate")
	case shapeTrajectories:
		return NotATrace, errors.New("these are texts of sessions without an order of arrival: " +
			"replay the list of orders, with this file beside it or named by -texts")
	case shapeLengths:
		return NotATrace, errors.New("these are lengths of passages: " +
			"replay the list of requests, with this file beside it or named by -texts")
	}
	return UnknownFormat, fmt.Errorf("begins with %.60q, which is none of: the JSONL of splicectl replay -h, Mooncake JSONL with hash_ids, "+
		"orders of sessions (time,session,turn,input,output), lists of passage ids (id,…,id,query tokens), overlap depths (%s)", line, depthsHead)
}
