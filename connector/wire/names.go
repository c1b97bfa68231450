package wire

import "strconv"

// opNames, codeNames and levelNames are indexed by number; docs/protocol.md lists the same.
var opNames = [...]string{
	OpHello: "hello", OpProfile: "profile", OpMatch: "match", OpAcquire: "acquire",
	OpReserve: "reserve", OpCommit: "commit", OpAbort: "abort", OpCompose: "compose",
	OpRotate: "rotate", OpAssemble: "assemble", OpSave: "save", OpLoad: "load",
	OpCancel: "cancel", OpRelease: "release", OpStats: "stats", OpAdvise: "advise",
	OpAppend: "append", OpAccept: "accept", OpReplay: "replay", OpReport: "report",
	OpAttachDevice: "attach-device", OpRegisterDevice: "register-device", OpAcquireDevice: "acquire-device",
	OpOrder: "order", OpLoadDevice: "load-device",
}

var codeNames = [...]string{
	OK: "ok", Miss: "miss", Invalid: "invalid", Busy: "busy", Full: "full", Gone: "gone",
	Corrupt: "corrupt", Unavailable: "unavailable", Exists: "exists", Denied: "denied",
	Stale: "stale", Unsupported: "unsupported", Canceled: "canceled", Late: "late", Quota: "quota",
}

// String returns the name of o, or its number when it has none.
func (o Op) String() string {
	if int(o) < len(opNames) && opNames[o] != "" {
		return opNames[o]
	}
	return "op " + strconv.Itoa(int(o))
}

// Known reports whether o is an operation of this version.
func (o Op) Known() bool { return int(o) < len(opNames) && opNames[o] != "" }

var levelNames = [...]string{LevelDefault: "default", LevelMemory: "memory", LevelLogged: "logged", LevelSynced: "synced"}

// String returns the name of l, or its number when it has none.
func (l Level) String() string {
	if l.Known() {
		return levelNames[l]
	}
	return "level " + strconv.Itoa(int(l))
}

// Known reports whether l is a level of this version.
func (l Level) Known() bool { return int(l) < len(levelNames) }

// String returns the name of c, or its number when it has none.
func (c Code) String() string {
	if int(c) < len(codeNames) {
		return codeNames[c]
	}
	return "code " + strconv.Itoa(int(c))
}
