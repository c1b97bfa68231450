package wire

//go:generate go run ./internal/wiregen ../..

// Message is the body of a frame. Append appends the encoded body to b, which may already
// hold a header. Decode reads a whole body; its slices are views of the body. After an error
// the message must not be used.
type Message interface {
	Append(b []byte) []byte
	Decode(body []byte) error
}

// None marks an absent offset in columns of offsets.
const None = ^uint64(0)

// AllLayers asks compose and rotate for every layer they apply to.
const AllLayers = int32(-1)
