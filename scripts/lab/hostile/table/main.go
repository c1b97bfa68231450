// Command table runs every attack of the hostile suite against a daemon built from this tree. It
// prints one row per attack: the attempt, what the attacker got, and how other clients were
// affected. It fails if an attack succeeded, or if an attack listed in mustRun was skipped or is
// missing.
package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// attack is a row of the table: a test, and a description if its test prints no line.
type attack struct {
	id   string // as in the list of findings; "held" = never succeeded, "none" = not an attack
	pkg  string // below the repository's root
	test string // full name in the package
	says string // description; empty = the test prints a HOSTILE line
}

const hostile, disk, trust = "scripts/lab/hostile", "tiering/disk", "connector/trust"

var attacks = []attack{
	{"none", hostile, "TestHostileNothingButOnTheSameProcessors", ""}, // not an attack: shows the effect of sharing processors
	{"H1", hostile, "TestHostileSparseMemoryDoesNotTakeAllAddresses", ""},
	{"H2", hostile, "TestHostileHolesAreNotFilledAtOurCost", ""},
	{"H3", hostile, "TestHostileMemberOfTheGroupCannotSeizeTheSocket", ""},
	{"H3", hostile, "TestHostileAdminTokenStaysAtHome", ""},
	{"H3", hostile, "TestHostileReplacedSocketIsTakenBack", ""},
	{"H3", trust, "TestPathsThatOthersCouldHaveReplaced", "Go clients at sockets below paths that others could have replaced"},
	{"H3", trust, "TestAnExpectedUserAloneIsBelieved", "Go clients told whom to expect, at everybody else's sockets"},
	{"H3", python, "test_client_trust.py", "the Python client at all of these"},
	{"H4", hostile, "TestHostileNeighbourInTheVolumeGetsNoToken", ""},
	{"M1", hostile, "TestHostileTinySegmentsTakeNoMoreThanTheQuota", ""},
	{"M2", hostile, "TestHostileProfilesDoNotTakeAllPlaces", ""},
	{"M3", hostile, "TestHostileFramesOfMuchWorkGiveWay", ""},
	{"M3", hostile, "TestHostileClientsThatDoNotReadKeepNoPlace", ""},
	{"M4", hostile, "TestHostileNamesDoNotBlindMetrics", ""},
	{"M5", hostile, "TestHostileIdleConnectionsDoNotKeepProbesOut", ""},
	{"M5", hostile, "TestHostileHandshakesDoNotKeepProbesOut", ""},
	{"M5", hostile, "TestHostileSilentSubscribersKeepNoRouterOut", ""},
	{"M6", hostile, "TestHostileConnectionsDoNotTakeAllThreads", ""},
	{"M7", hostile, "TestHostileDescriptorsOfTheDaemonAreNotUsedUp", ""},
	{"M7", hostile, "TestHostileFewDescriptorsAreReported", ""},
	{"M8", hostile, "TestHostileNothingIsSyncedIntoAMissingDirectory", ""},
	{"M8", disk, "TestNothingIsAcknowledgedIntoWhatIsMissing", "the directory, its slabs, its log or its catalogue removed, renamed or replaced while a sync is waited for"},
	{"M8", disk, "TestFileSystemTakenAway", "the file system unmounted, or covered by another"},
	{"M9", hostile, "TestHostileForeignDirectoryIsNotUsed", ""},
	{"M9", hostile, "TestHostileChangedSlabsAreNotServed", ""},
	{"M9", disk, "TestForeignDirectoryIsLeftAlone", "each part of the directory given to others, made writable, or replaced by links, FIFOs and devices"},
	{"M9", disk, "TestForgedExtentsAreNotServed", "extents forged with right digests, without a seal, and with the seal of another key"},
	{"M10", hostile, "TestHostileFlipInTheLogIsNoSilentLoss", ""},
	{"M10", disk, "TestExtentsWithoutARowComeBack", "a log that an earlier release has dropped rows from"},
	{"M11", hostile, "TestHostileStrangersAtTheGossipPort", ""},
	{"M11", hostile, "TestHostileNodeWithAnotherKeyIsCounted", ""},
	{"low", hostile, "TestHostileUserCannotTakeAllConnections", ""},
	{"low", hostile, "TestHostileTokensAreGuessedSlowly", ""},
	{"low", hostile, "TestHostileSmallMachineIsEnough", ""},
	{"low", hostile, "TestHostileArenaLargerThanMemoryIsCut", ""},
	{"low", hostile, "TestHostileDriverThatHangsIsNotSilence", ""},
	{"low", hostile, "TestHostileDriverThatHangsDoesNotKeepADaemon", ""},
	{"low", disk, "TestFrozenFileSystemEndsInTime", "a file system that answers nothing while the tier is closed"},
	{"low", disk, "TestOfflineNamesWhatIsNoSlab", "links and FIFOs among the slabs"},
	{"low", "daemon/budget", "TestOneUserLeavesAQuarterToOthers", "all of connection-memory asked for by one user"},
	{"low", "daemon/budget", "TestRegisteredMemoryLeavesHalfOfAUsersShare", "all of a user's share asked for as registered memory"},
	{"low", "daemon/canary", "TestDamagedNoteFailsClosed", "a damaged switched-off.json"},
	{"low", "daemon/settings", "TestOtherBadSources", "a second YAML document, values of wrong kinds"},
	{"low", "daemon/settings", "TestErrorsNameWhatToCorrect", "files that are not there"},
	{"low", "daemon/settings", "TestSecretsAreFiles", "token files that are FIFOs, devices, folders, empty or of any length"},
	{"low", "daemon/settings", "TestATokenThatEverybodyCanReadIsWarnedOf", "a token file that every user can read"},
	{"low", "daemon/settings", "TestNamesThatNobodyCanBeShownAreRefused", "NUL, control characters and bytes that are no text in settings"},
	{"low", "daemon/cmd/spliced", "TestLogsHoldNothingThatATerminalObeys", "names of clients that move a cursor, set a title or begin a line, in a log"},
	{"low", "api/cmd/cli/terminal", "TestWhatATerminalWouldObeyIsEscaped", "the same where splicectl prints it"},
	{"L1", hostile, "TestHostileMemoryThatClientsKeepIsTakenBack", ""},
	{"L2", hostile, "TestHostileRequestsInFlightFitTheMemory", ""},
	{"L3", hostile, "TestHostileManyRowsAreNotAnsweredByTheReader", ""},
	{"L6", hostile, "TestHostileSegmentsWithOneHashAreTwo", ""},
	{"L4", "daemon/cmd/spliced", "TestItOutlivesTheReaderOfItsLog", "the end of whoever reads the daemon's log, then a line of it"},
	{"L5", "daemon/server", "TestRefusedPeersFillNoLog", "a hundred thousand connections of somebody who may not connect"},
	{"bucket", hostile, "TestHostileANodeDiesBeforeItsBucket", ""},
	{"bucket", hostile, "TestHostileBucketThatFails", ""},
	{"copies", hostile, "TestHostileLastCopiesOutliveTheirNode", ""},
	{"copies", hostile, "TestHostileStoppedOwnerIsSkipped", ""},
	{"copies", hostile, "TestHostileKilledNodeIsListedAsFailed", ""},
	{"bucket", hostile, "TestHostileBucketThatTakesNothing", ""},
	{"held", hostile, "TestHostileGarbageEndsItsConnectionOnly", ""},
	{"held", disk, "TestFileSystemFullToTheLastByte", "ext4 filled to the last byte while objects are synced"},
	{"held", disk, "TestReadOnlyStart", "a start on a file system that is read-only"},
}

// mustRun lists the ids of attacks whose tests must not be skipped or missing.
var mustRun = []string{"H1", "H2", "H3", "H4", "M1", "M2", "M3", "M4", "M5", "M8", "M9", "M10", "M11"}

// python is the package name of the Python client's tests.
const python = "connector/python"

// Outcomes of a test.
const (
	held    = "pass"
	skipped = "skip"
	failed  = "fail"
)

// result is the outcome of a test, by package and name.
type result struct {
	outcome string
	lines   []string // HOSTILE lines
	output  strings.Builder
}

type results map[[2]string]*result

func (r results) of(pkg, test string) *result {
	key := [2]string{pkg, test}
	if r[key] == nil {
		r[key] = &result{}
	}
	return r[key]
}

const module = "github.com/spliced-kv/spliced/"

// read reads the events of go test -json. The output of subtests belongs to their test.
func (r results) read(events io.Reader) error {
	lines := bufio.NewReader(events)
	for {
		line, err := lines.ReadBytes('\n')
		if len(bytes.TrimSpace(line)) > 0 {
			var e struct{ Action, Package, Test, Output string }
			if err := json.Unmarshal(line, &e); err != nil {
				return fmt.Errorf("go test -json: %w: %q", err, line)
			}
			name, _, sub := strings.Cut(e.Test, "/")
			at := r.of(strings.TrimPrefix(e.Package, module), name)
			switch e.Action {
			case "output":
				at.output.WriteString(e.Output)
				if _, said, ok := strings.Cut(strings.TrimSpace(e.Output), "HOSTILE "); ok {
					at.lines = append(at.lines, said)
				}
			case held, failed:
				if !sub {
					at.outcome = e.Action
				}
			case skipped: // a test with a skipped part counts as skipped
				at.lines = append(at.lines, "")
				if !sub {
					at.outcome = e.Action
				}
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
	}
}

// row is one row of the table.
type row struct{ id, test, outcome, tried, got, felt string }

// judge turns results into rows. bad lists the reasons why the suite fails; empty = it passes.
func judge(attacks []attack, r results) (rows []row, bad []string) {
	wrong := func(format string, a ...any) { bad = append(bad, fmt.Sprintf(format, a...)) }
	known := map[[2]string]bool{}
	present := map[string]bool{}
	for _, a := range attacks {
		known[[2]string{a.pkg, a.test}] = true
		at := r.of(a.pkg, a.test)
		lines := slices.DeleteFunc(slices.Clone(at.lines), func(l string) bool { return l == "" })
		partly := len(lines) < len(at.lines)
		if a.says != "" && at.outcome == held {
			lines = []string{"| tried: " + a.says + " | attacker got: nothing | others felt: see the test"}
		}
		must := slices.Contains(mustRun, a.id)
		switch {
		case at.outcome == failed:
			wrong("%s: %s failed", a.id, a.test)
		case at.outcome == "" && a.pkg != python:
			wrong("%s: %s did not run", a.id, a.test)
		case must && a.pkg != python && (at.outcome == skipped || partly):
			wrong("%s: %s was skipped", a.id, a.test)
		case at.outcome == held && len(lines) == 0:
			wrong("%s: %s printed no line", a.id, a.test)
		case at.outcome == held:
			present[a.id] = true
		}
		if len(lines) == 0 {
			rows = append(rows, row{id: a.id, test: a.test, outcome: at.outcome, tried: a.says, got: reason(at)})
		}
		for _, l := range lines {
			rows = append(rows, parse(a, at.outcome, l))
		}
	}
	for _, id := range mustRun {
		if !present[id] {
			wrong("%s: no attack of that name was held off", id)
		}
	}
	for key, at := range r {
		if at.outcome != "" && key[1] != "" && !known[key] && key[0] == hostile {
			wrong("%s is in no row of the table", key[1])
		}
	}
	slices.Sort(bad)
	return rows, bad
}

// parse splits a HOSTILE line.
func parse(a attack, outcome, line string) row {
	out := row{id: a.id, test: a.test, outcome: outcome}
	for _, field := range strings.Split(line, " | ") {
		field = strings.TrimPrefix(field, "| ")
		for to, name := range map[*string]string{&out.tried: "tried: ", &out.got: "attacker got: ", &out.felt: "others felt: "} {
			if text, ok := strings.CutPrefix(field, name); ok {
				*to = text
			}
		}
	}
	return out
}

// reason returns why a test was skipped: the line that it printed.
func reason(r *result) string {
	for line := range strings.Lines(r.output.String()) {
		line = strings.TrimSpace(line)
		if _, why, ok := strings.Cut(line, ".go:"); ok && r.outcome == skipped && !strings.Contains(why, "HOSTILE ") {
			_, why, _ = strings.Cut(why, ": ")
			return strings.TrimPrefix(why, "SKIP: ")
		}
	}
	return r.outcome
}

// print writes the table as Markdown, and the closing line.
func print(w io.Writer, rows []row) error {
	var b strings.Builder
	outcomes := map[string]int{}
	var reasons []string
	b.WriteString("| attack | test | tried | attacker got | others felt |\n|---|---|---|---|---|\n")
	words := map[string]string{skipped: "SKIPPED: ", failed: "**FAILED**: ", "": "**MISSING**: "}
	for _, r := range rows {
		outcomes[r.outcome]++
		if r.outcome == skipped {
			reasons = append(reasons, r.test+": "+r.got)
		}
		cells := []string{r.id, r.test, r.tried, words[r.outcome] + r.got, r.felt}
		for i := range cells {
			cells[i] = strings.ReplaceAll(cells[i], "|", `\|`)
		}
		fmt.Fprintf(&b, "| %s |\n", strings.Join(cells, " | "))
	}
	fmt.Fprintf(&b, "\n%d attacks, %d held, %d skipped", len(rows), outcomes[held], outcomes[skipped])
	if len(reasons) > 0 {
		b.WriteString(": " + strings.Join(reasons, "; "))
	}
	b.WriteByte('\n')
	_, err := io.WriteString(w, b.String())
	return err
}

// lab is the folder of this module, where the command runs; root is the path from there to
// the repository.
const lab, root = "scripts/lab", "../.."

// goTests runs the tests of Go's packages, of this module and of the main one.
func (r results) goTests() error {
	var names []string
	packages := map[string][]string{} // by the folder of their module
	for _, a := range attacks {
		if a.pkg == python {
			continue
		}
		names = append(names, a.test)
		module, path := root, "./"+a.pkg
		if in, ok := strings.CutPrefix(a.pkg, lab+"/"); ok {
			module, path = ".", "./"+in
		}
		if !slices.Contains(packages[module], path) {
			packages[module] = append(packages[module], path)
		}
	}
	// The pattern selects all tests of the hostile suite, so that tests without a row are
	// noticed, and only the named tests of other packages.
	pattern := "^(TestHostile.*|" + strings.Join(names, "|") + ")$"
	return errors.Join(r.testModule(".", packages["."], pattern), r.testModule(root, packages[root], pattern))
}

// testModule runs tests of packages of the module in a folder.
func (r results) testModule(dir string, packages []string, pattern string) error {
	command := exec.Command("go", append([]string{"test", "-json", "-count=1", "-p=1", "-timeout=20m", "-run", pattern}, packages...)...)
	command.Dir = dir
	command.Stderr = os.Stderr
	events, err := command.StdoutPipe()
	if err != nil {
		return err
	}
	if err := command.Start(); err != nil {
		return err
	}
	err = r.read(events)
	var exit *exec.ExitError
	if ended := command.Wait(); ended != nil && !errors.As(ended, &exit) { // failed tests are in the results
		err = errors.Join(err, ended)
	}
	return err
}

// pythonTests runs the tests of the Python client if its environment exists.
func (r results) pythonTests() error {
	interpreter, err := filepath.Abs(filepath.Join(root, "bin/python/bin/python"))
	if err != nil {
		return err
	}
	for _, a := range attacks {
		if a.pkg != python {
			continue
		}
		at := r.of(a.pkg, a.test)
		if _, err := os.Stat(interpreter); err != nil {
			at.outcome = skipped
			at.output.WriteString("table.go:1: no environment of Python: make python\n")
			continue
		}
		command := exec.Command(interpreter, "-m", "pytest", "-q", "-rs", "tests/"+a.test)
		command.Dir = filepath.Join(root, python)
		out, err := command.CombinedOutput()
		at.output.Write(out)
		at.outcome = held
		if err != nil {
			at.outcome = failed
		} else if bytes.Contains(out, []byte(" skipped")) {
			at.outcome = skipped
			at.output.WriteString("table.go:1: " + lastLine(out) + "\n")
		}
	}
	return nil
}

func lastLine(text []byte) string {
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	return lines[len(lines)-1]
}

func run() error {
	r := results{}
	if err := errors.Join(r.goTests(), r.pythonTests()); err != nil {
		return err
	}
	rows, bad := judge(attacks, r)
	if err := print(os.Stdout, rows); err != nil {
		return err
	}
	for _, at := range r {
		if at.outcome == failed {
			fmt.Fprintln(os.Stderr, at.output.String())
		}
	}
	if len(bad) > 0 {
		return errors.New(strings.Join(bad, "\n"))
	}
	return nil
}

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
