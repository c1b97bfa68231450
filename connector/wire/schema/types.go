package schema

// Protocol is the complete description.
type Protocol struct {
	Constants  []Constant
	Enums      []Enum
	Structs    []Struct
	Messages   []Message
	Operations []Operation
}

// Constant is a number with a name: a bound, a size or a version.
type Constant struct {
	Name  string // in Go form; Python has MAX_KEYS for MaxKeys
	Value int
	Doc   string
	Bound bool // listed in docs/protocol.md as a bound
}

// Enum is a set of named numbers. The values of the enum of ops are taken from Operations.
type Enum struct {
	Name   string // name in docs/protocol.md and, if Own, of the Go type
	Prefix string // of the Go constants
	Type   string // the underlying Go type
	Own    bool   // declares a Go type; else the constants have the type Type
	Named  bool   // the Go type has String and Known
	Bits   bool   // a set of bits
	Python string // class in Python; "" = none
	Client bool   // the Python class is for users of the client; else for the codec only
	Doc    string // follows the name: "Code is", "Status is"
	Values []Value
}

// Value is one number of an Enum.
type Value struct {
	Name   string // without the prefix
	Number uint64
	Doc    string
	Then   string // for codes: what a client should do
	Python string // "" = derived from Name
}

// Struct is a Go type that groups several columns or scalars of a message. Python's messages
// are flat.
type Struct struct {
	Name   string
	Doc    string
	Fields []Field // without bounds: only Name, Kind and Doc count
}

// Message is the body of a frame: scalars, then columns, then sections.
type Message struct {
	Name string
	Doc  string // follows the name
	// Like names a message that this one embeds and whose layout it shares.
	Like     string
	Body     []Item
	Sections []Section
}

// Section is an optional part of a message. It follows the fields and earlier sections, and
// is only sent between peers that agreed on Feature.
type Section struct {
	Name    string // name of the Go field
	Struct  string // its Go type and Python class
	Feature string // value of the enum Feature; the section begins with its bit
	Doc     string
	Body    []Item
}

// Item is a Field or a Check.
type Item interface{ item() }

// Kind is the encoding of a field.
type Kind int

// Scalars, then columns.
const (
	U8 Kind = iota
	U16
	U32
	I32
	U64
	F64
	Hash
	U8s
	U16s
	U32s
	U64s
	F64s
	Hashes
	Text  // a column of bytes
	Texts // u32 lengths, then all bytes joined
	Blobs // the same, of bytes that are not text
)

// Column reports whether fields of k are columns.
func (k Kind) Column() bool { return k >= U8s }

// Field is one scalar or column.
type Field struct {
	// Name is the Go field. "Plan.Begin" is the field Begin of the struct Plan. "Memory[].Layer"
	// is a column with the field Layer of every element of Memory.
	Name string
	Kind Kind
	Type string // name of the struct, if Name has a dot
	Most string // columns: maximum number of elements, an expression of constants
	Each string // texts and blobs: maximum bytes of one
	// Rows names the column that must have as many elements as this one; with OrNone, this one
	// may also be empty. Divides names the column that this column of counts divides into parts.
	Rows    string
	OrNone  bool
	Divides string
	Words   string // in errors and docs; "" = the words of Name
	Python  string // "" = as Words
	Doc     string
}

// Check is a rule that Rows and Divides cannot express. The decoder checks it at its position
// among the fields. Rows and Divides are checked after the last field of the body, Rows first.
type Check struct {
	Field string
	// One of these is set.
	Exactly string   // number of elements of the column
	OneOf   []string // the scalar is one of these values
	Within  string   // the scalar is at most the number of elements of this column
	Only    *Only
	// OrNone, for Exactly: no elements are allowed as well.
	OrNone bool
}

// Only makes a column depend on a scalar. If Scalar has the value Is, the column has Times
// elements for each element of the column Rows; otherwise it is empty.
type Only struct {
	Scalar, Is  string
	Rows, Times string // Times "" = 1
}

func (Field) item() {}
func (Check) item() {}

// Operation is one op.
type Operation struct {
	Number         int
	Name           string // attach-device; in Go OpAttachDevice
	Request, Reply string
	// Tenant: the header names a tenant of the connection. Stopping: the daemon serves the
	// operation also while it stops, because the operation ends something.
	Tenant, Stopping bool
	// Accompanying descriptors, in words; "" = none are allowed.
	RequestDescriptors, ReplyDescriptors string
}
