package events

import (
	"bytes"
	"fmt"

	"github.com/vmihailenco/msgpack/v5"
)

// Format is an encoding of events.
type Format uint8

const (
	// Maps encodes an event as a map of its fields by name. Replayed batches include their topic. vLLM
	// has this format since its change 42892, and llm-d-kv-cache since 0.9.
	Maps Format = iota
	// Arrays encodes an event as an array of its fields in order. Replayed batches have no topic. vLLM
	// had this format before that change.
	Arrays
)

// ParseFormat parses "maps" or "arrays".
func ParseFormat(text string) (Format, error) {
	switch text {
	case "maps":
		return Maps, nil
	case "arrays":
		return Arrays, nil
	}
	return 0, fmt.Errorf("format %q is neither maps nor arrays", text)
}

// medium is the location that is reported for all objects. Whether an object is in memory or on
// disk changes too often to be useful to a router.
const medium = "CPU"

// Kinds of block groups, named as in vLLM.
const (
	fullAttention = "full_attention"
	mlaAttention  = "mla_attention"
	slidingWindow = "sliding_window"
	mamba         = "mamba"
	unknownKind   = "unknown"
)

// event is one event of a batch.
type event struct {
	tag    string   // BlockStored, BlockRemoved or AllBlocksCleared
	hashes []uint64 // hashes of blocks, in prompt order, or in order of removal
	parent uint64   // hash of the block before the first one; 0 = the first block begins the prompt
	tokens []uint32 // token ids of all blocks
	block  int      // tokens per block
	group  int
	kind   string
	extra  []any // extra keys, the same for every block; nil = none
}

const (
	stored  = "BlockStored"
	removed = "BlockRemoved"
	cleared = "AllBlocksCleared"
)

// encodeBatch returns the payload of one message: [seconds, [events], data parallel rank].
func encodeBatch(f Format, seconds float64, events []event) []byte {
	var b bytes.Buffer
	e := msgpack.NewEncoder(&b)
	e.UseCompactInts(true)
	// A buffer cannot fail, and every value has an encoding.
	must := func(err error) {
		if err != nil {
			panic(fmt.Sprintf("events: a batch does not encode: %v", err))
		}
	}
	must(e.EncodeArrayLen(3))
	must(e.EncodeFloat64(seconds))
	must(e.EncodeArrayLen(len(events)))
	for i := range events {
		must(events[i].encode(e, f))
	}
	must(e.EncodeInt(0))
	return b.Bytes()
}

// field is one field of an event.
type field struct {
	name  string
	value any // nil, string, int, uint64, []uint64, []uint32 or []any
}

// fields returns the type and the fields of an event, in the order of vLLM's classes.
func (v *event) fields() []field {
	tag := field{"type", v.tag}
	switch v.tag {
	case stored:
		var parent, extra any
		if v.parent != 0 {
			parent = v.parent
		}
		if v.extra != nil {
			rows := make([]any, len(v.hashes))
			for i := range rows {
				rows[i] = v.extra
			}
			extra = rows
		}
		return []field{
			tag, {"block_hashes", v.hashes}, {"parent_block_hash", parent}, {"token_ids", v.tokens}, {"block_size", v.block},
			{"lora_id", nil}, {"medium", medium}, {"lora_name", nil}, {"extra_keys", extra}, {"group_idx", v.group}, {"kv_cache_spec_kind", v.kind},
		}
	case removed:
		return []field{tag, {"block_hashes", v.hashes}, {"medium", medium}, {"group_idx", v.group}}
	}
	return []field{tag}
}

func (v *event) encode(e *msgpack.Encoder, f Format) error {
	fields := v.fields()
	head := e.EncodeMapLen
	if f == Arrays {
		head = e.EncodeArrayLen
	}
	err := head(len(fields))
	for i := 0; i < len(fields) && err == nil; i++ {
		if f == Maps {
			err = e.EncodeString(fields[i].name)
		}
		if err == nil {
			err = encodeValue(e, fields[i].value)
		}
	}
	return err
}

func encodeValue(e *msgpack.Encoder, value any) error {
	switch v := value.(type) {
	case nil:
		return e.EncodeNil()
	case string:
		return e.EncodeString(v)
	case int:
		return e.EncodeInt(int64(v))
	case uint64:
		return e.EncodeUint(v)
	case []uint64:
		return encodeList(e, v, e.EncodeUint)
	case []uint32:
		return encodeList(e, v, func(id uint32) error { return e.EncodeUint(uint64(id)) })
	case []any:
		return encodeList(e, v, func(item any) error { return encodeValue(e, item) })
	}
	return fmt.Errorf("unsupported type %T", value)
}

func encodeList[T any](e *msgpack.Encoder, list []T, one func(T) error) error {
	err := e.EncodeArrayLen(len(list))
	for i := 0; i < len(list) && err == nil; i++ {
		err = one(list[i])
	}
	return err
}
