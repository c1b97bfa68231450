package wire

// Message is the body of a frame. Append appends the encoded body to b, which
// may already hold a header. Decode reads a whole body; its slices are views of
// it, and after an error the message holds nothing to be used.
type Message interface {
	Append(b []byte) []byte
	Decode(body []byte) error
}

// New returns an empty message of the op and kind; false for an unknown op.
// Reserve and save share a reply, as do abort, release and order, rotate and
// assemble, append and accept, compose and replay, and acquire and load with
// their forms for device memory.
func New(op Op, kind Kind) (Message, bool) {
	if !op.Known() || kind > Reply {
		return nil, false
	}
	return messages[op][kind](), true
}

var messages = [...][2]func() Message{
	OpHello:    {message[HelloRequest], message[HelloReply]},
	OpProfile:  {message[ProfileRequest], message[ProfileReply]},
	OpMatch:    {message[MatchRequest], message[MatchReply]},
	OpAcquire:  {message[AcquireRequest], message[AcquireReply]},
	OpReserve:  {message[ReserveRequest], message[ReserveReply]},
	OpCommit:   {message[CommitRequest], message[CommitReply]},
	OpAbort:    {message[AbortRequest], message[CodesReply]},
	OpCompose:  {message[ComposeRequest], message[ComposeReply]},
	OpRotate:   {message[RotateRequest], message[RotateReply]},
	OpAssemble: {message[AssembleRequest], message[RotateReply]},
	OpSave:     {message[SaveRequest], message[ReserveReply]},
	OpLoad:     {message[LoadRequest], message[LoadReply]},
	OpCancel:   {message[CancelRequest], message[CancelReply]},
	OpRelease:  {message[ReleaseRequest], message[CodesReply]},
	OpStats:    {message[StatsRequest], message[StatsReply]},
	OpAdvise:   {message[AdviseRequest], message[AdviseReply]},
	OpAppend:   {message[AppendRequest], message[AppendReply]},
	OpAccept:   {message[AcceptRequest], message[AppendReply]},
	OpReplay:   {message[ReplayRequest], message[ComposeReply]},
	OpReport:   {message[ReportRequest], message[ReportReply]},

	OpAttachDevice:   {message[AttachDeviceRequest], message[AttachDeviceReply]},
	OpRegisterDevice: {message[RegisterDeviceRequest], message[RegisterDeviceReply]},
	OpAcquireDevice:  {message[AcquireDeviceRequest], message[AcquireReply]},
	OpOrder:          {message[OrderRequest], message[CodesReply]},
	OpLoadDevice:     {message[LoadDeviceRequest], message[LoadReply]},
}

func message[T any, P interface {
	*T
	Message
}]() Message {
	return P(new(T))
}
