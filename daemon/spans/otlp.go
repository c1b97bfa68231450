package spans

import (
	"math"
	"strings"
	"time"

	"google.golang.org/protobuf/encoding/protowire"
)

// Numbers of fields in opentelemetry/proto/trace/v1/trace.proto and common/v1/common.proto.
// A request to the collector is a list of ResourceSpans.
const (
	requestResourceSpans = 1

	resourceSpansResource   = 1
	resourceSpansScopeSpans = 2

	resourceAttributes = 1

	scopeSpansScope = 1
	scopeSpansSpans = 2

	scopeName = 1

	spanTraceID      = 1
	spanID           = 2
	spanParentSpanID = 4
	spanName         = 5
	spanKind         = 6
	spanStart        = 7 // in nanoseconds since 1970, as spanEnd
	spanEnd          = 8
	spanAttributes   = 9
	spanFlags        = 16

	keyValueKey   = 1
	keyValueValue = 2

	anyValueString = 1
	anyValueInt    = 3
	anyValueDouble = 4

	// Fields of the response.
	responsePartialSuccess = 1
	partialRejectedSpans   = 1
	partialErrorMessage    = 2
)

const (
	kindInternal = 1

	// Flags of a span, above the 8 bits of W3C Trace Context. hasIsRemote: isRemote is valid. isRemote:
	// the parent is in another process.
	hasIsRemote = 0x100
	isRemote    = 0x200
)

// message is an encoded protobuf message, to which fields are appended.
type message []byte

func (m *message) bytes(field protowire.Number, value []byte) {
	*m = protowire.AppendBytes(protowire.AppendTag(*m, field, protowire.BytesType), value)
}

// string appends text. It replaces invalid UTF-8, since a collector refuses a whole batch for one
// invalid string.
func (m *message) string(field protowire.Number, value string) {
	*m = protowire.AppendString(protowire.AppendTag(*m, field, protowire.BytesType), strings.ToValidUTF8(value, "\uFFFD"))
}

func (m *message) varint(field protowire.Number, value uint64) {
	*m = protowire.AppendVarint(protowire.AppendTag(*m, field, protowire.VarintType), value)
}

func (m *message) fixed32(field protowire.Number, value uint32) {
	*m = protowire.AppendFixed32(protowire.AppendTag(*m, field, protowire.Fixed32Type), value)
}

func (m *message) fixed64(field protowire.Number, value uint64) {
	*m = protowire.AppendFixed64(protowire.AppendTag(*m, field, protowire.Fixed64Type), value)
}

// text, integer and float append an attribute. They write a value even if it is zero, since the
// field that is present determines the type.
func (m *message) text(field protowire.Number, key, value string) {
	v := make(message, 0, 64)
	v.string(anyValueString, value)
	m.attribute(field, key, v)
}

// integer appends an attribute of type int64. All integers here are counts.
func (m *message) integer(field protowire.Number, key string, value uint64) {
	v := make(message, 0, 16)
	v.varint(anyValueInt, min(value, math.MaxInt64))
	m.attribute(field, key, v)
}

func (m *message) float(field protowire.Number, key string, value float64) {
	v := make(message, 0, 16)
	v.fixed64(anyValueDouble, math.Float64bits(value))
	m.attribute(field, key, v)
}

func (m *message) attribute(field protowire.Number, key string, value message) {
	kv := make(message, 0, 96)
	kv.string(keyValueKey, key)
	kv.bytes(keyValueValue, value)
	m.bytes(field, kv)
}

// span is a span without attributes.
type span struct {
	trace      [16]byte
	parent, id [8]byte // parent zero = no parent
	remote     bool    // the parent is a span of the engine
	flags      byte
	name       string
	begin, end time.Time
}

func (s *span) encode() message {
	m := make(message, 0, 512)
	m.bytes(spanTraceID, s.trace[:])
	m.bytes(spanID, s.id[:])
	if s.parent != [8]byte{} {
		m.bytes(spanParentSpanID, s.parent[:])
	}
	m.string(spanName, s.name)
	m.varint(spanKind, kindInternal)
	m.fixed64(spanStart, nanos(s.begin))
	m.fixed64(spanEnd, nanos(s.end))
	flags := uint32(s.flags) | hasIsRemote
	if s.remote {
		flags |= isRemote
	}
	m.fixed32(spanFlags, flags)
	return m
}

func nanos(t time.Time) uint64 { return uint64(max(0, t.UnixNano())) } // not below 0

// resourceOf encodes the Resource that all spans of this daemon share.
func resourceOf(c *Config) (m message) {
	m.text(resourceAttributes, "service.name", "spliced")
	m.text(resourceAttributes, "service.version", c.Version)
	m.text(resourceAttributes, "service.instance.id", c.Node)
	return m
}

// scope encodes the InstrumentationScope.
func scope() (m message) {
	m.string(scopeName, "github.com/spliced-kv/spliced")
	return m
}

// batch encodes an ExportTraceServiceRequest.
func batch(resource, scope message, spans []message) (request message) {
	scoped := make(message, 0, 256*len(spans))
	scoped.bytes(scopeSpansScope, scope)
	for _, s := range spans {
		scoped.bytes(scopeSpansSpans, s)
	}
	var of message
	of.bytes(resourceSpansResource, resource)
	of.bytes(resourceSpansScopeSpans, scoped)
	request.bytes(requestResourceSpans, of)
	return request
}

// rejected decodes an ExportTraceServiceResponse. It returns how many spans of an accepted request
// the collector rejected, and why. For any other body, it returns 0.
func rejected(answer []byte) (n uint64, why string) {
	partial := field(answer, responsePartialSuccess)
	if count, size := protowire.ConsumeVarint(field(partial, partialRejectedSpans)); size > 0 {
		n = min(count, batchSpans)
	}
	return n, string(field(partial, partialErrorMessage))
}

// field returns the value of the last field with that number in message m; nil = there is none. The
// value of a length-delimited field is its content. The value of any other field is its encoding.
func field(m []byte, number protowire.Number) (value []byte) {
	for len(m) > 0 {
		n, kind, size := protowire.ConsumeTag(m)
		if size < 0 {
			return nil
		}
		m = m[size:]
		if size = protowire.ConsumeFieldValue(n, kind, m); size < 0 {
			return nil
		}
		if n == number {
			value = m[:size]
			if kind == protowire.BytesType {
				value, _ = protowire.ConsumeBytes(value)
			}
		}
		m = m[size:]
	}
	return value
}
