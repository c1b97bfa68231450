package wire

import "strconv"

// OpCount is one more than the highest op: an array of that length, indexed by
// ops that are Known, cannot be indexed out of range.
const OpCount = int(OpLoadDevice) + 1

// CodeCount is the same for codes.
const CodeCount = int(Quota) + 1

// Rules are what a header of an operation has to keep to.
type Rules struct {
	Tenant        bool // it names a tenant of the connection
	Descriptors   bool // descriptors may come along
	WhileStopping bool // it is served while the daemon stops, since it ends things
}

// operation is what the protocol says of one op.
type operation struct {
	name     string
	rules    Rules
	messages [2]func() Message // by Kind
}

// operations is indexed by Op; an op without a name does not exist.
var operations = [OpCount]operation{
	OpHello:          {"hello", Rules{}, [2]func() Message{message[HelloRequest], message[HelloReply]}},
	OpProfile:        {"profile", Rules{Descriptors: true}, [2]func() Message{message[ProfileRequest], message[ProfileReply]}},
	OpMatch:          {"match", Rules{Tenant: true}, [2]func() Message{message[MatchRequest], message[MatchReply]}},
	OpAcquire:        {"acquire", Rules{Tenant: true}, [2]func() Message{message[AcquireRequest], message[AcquireReply]}},
	OpReserve:        {"reserve", Rules{Tenant: true}, [2]func() Message{message[ReserveRequest], message[ReserveReply]}},
	OpCommit:         {"commit", Rules{}, [2]func() Message{message[CommitRequest], message[CommitReply]}},
	OpAbort:          {"abort", Rules{WhileStopping: true}, [2]func() Message{message[AbortRequest], message[CodesReply]}},
	OpCompose:        {"compose", Rules{Tenant: true}, [2]func() Message{message[ComposeRequest], message[ComposeReply]}},
	OpRotate:         {"rotate", Rules{Tenant: true}, [2]func() Message{message[RotateRequest], message[RotateReply]}},
	OpAssemble:       {"assemble", Rules{Tenant: true}, [2]func() Message{message[AssembleRequest], message[RotateReply]}},
	OpSave:           {"save", Rules{Tenant: true}, [2]func() Message{message[SaveRequest], message[ReserveReply]}},
	OpLoad:           {"load", Rules{Tenant: true}, [2]func() Message{message[LoadRequest], message[LoadReply]}},
	OpCancel:         {"cancel", Rules{WhileStopping: true}, [2]func() Message{message[CancelRequest], message[CancelReply]}},
	OpRelease:        {"release", Rules{WhileStopping: true}, [2]func() Message{message[ReleaseRequest], message[CodesReply]}},
	OpStats:          {"stats", Rules{WhileStopping: true}, [2]func() Message{message[StatsRequest], message[StatsReply]}},
	OpAdvise:         {"advise", Rules{Tenant: true}, [2]func() Message{message[AdviseRequest], message[AdviseReply]}},
	OpAppend:         {"append", Rules{Tenant: true}, [2]func() Message{message[AppendRequest], message[AppendReply]}},
	OpAccept:         {"accept", Rules{Tenant: true}, [2]func() Message{message[AcceptRequest], message[AppendReply]}},
	OpReplay:         {"replay", Rules{Tenant: true}, [2]func() Message{message[ReplayRequest], message[ComposeReply]}},
	OpReport:         {"report", Rules{Tenant: true}, [2]func() Message{message[ReportRequest], message[ReportReply]}},
	OpAttachDevice:   {"attach-device", Rules{}, [2]func() Message{message[AttachDeviceRequest], message[AttachDeviceReply]}},
	OpRegisterDevice: {"register-device", Rules{Descriptors: true}, [2]func() Message{message[RegisterDeviceRequest], message[RegisterDeviceReply]}},
	OpAcquireDevice:  {"acquire-device", Rules{Tenant: true}, [2]func() Message{message[AcquireDeviceRequest], message[AcquireReply]}},
	OpOrder:          {"order", Rules{WhileStopping: true}, [2]func() Message{message[OrderRequest], message[CodesReply]}},
	OpLoadDevice:     {"load-device", Rules{Tenant: true}, [2]func() Message{message[LoadDeviceRequest], message[LoadReply]}},
}

func message[T any, P interface {
	*T
	Message
}]() Message {
	return P(new(T))
}

// Known reports whether o is an operation of this version.
func (o Op) Known() bool { return int(o) < OpCount && operations[o].name != "" }

// String returns the name of o, or its number when it has none.
func (o Op) String() string {
	if o.Known() {
		return operations[o].name
	}
	return "op " + strconv.Itoa(int(o))
}

// Rules returns what a header of o has to keep to; o is Known.
func (o Op) Rules() Rules { return operations[o].rules }

// New returns an empty message of the op and kind; false for an unknown op.
// Reserve and save share a reply, as do abort, release and order, rotate and
// assemble, append and accept, compose and replay, and acquire and load with
// their forms for device memory.
func New(op Op, kind Kind) (Message, bool) {
	if !op.Known() || kind > Reply {
		return nil, false
	}
	return operations[op].messages[kind](), true
}
