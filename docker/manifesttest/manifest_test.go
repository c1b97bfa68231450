package manifesttest

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/pod-security-admission/api"
	"k8s.io/pod-security-admission/policy"
	"sigs.k8s.io/yaml"
)

// overheadBytes is what the process needs beside the memory it hands out.
const overheadBytes = 1 << 30

// eachSidecar runs a test on the pod of every manifest.
func eachSidecar(t *testing.T, test func(*testing.T, *corev1.Pod)) {
	t.Helper()
	for _, name := range []string{"sidecar.yaml", "sidecar-gpu.yaml"} {
		t.Run(name, func(t *testing.T) {
			documents := documents(t, name)
			pod, err := decode(documents[len(documents)-1])
			must(t, err)
			test(t, pod)
		})
	}
}

// documents are those of one manifest; its pod is the last.
func documents(t *testing.T, name string) [][]byte {
	t.Helper()
	text, err := os.ReadFile("../" + name)
	must(t, err)
	return bytes.Split(text, []byte("\n---\n"))
}

func decode(text []byte) (*corev1.Pod, error) {
	var pod corev1.Pod
	if err := yaml.UnmarshalStrict(text, &pod); err != nil {
		return nil, err
	}
	if pod.APIVersion != "v1" || pod.Kind != "Pod" {
		return nil, fmt.Errorf("%s %s is not a v1 Pod", pod.APIVersion, pod.Kind)
	}
	return &pod, nil
}

// violations of Pod Security "restricted".
func violations(t *testing.T, pod *corev1.Pod) []string {
	t.Helper()
	return violationsOf(t, api.LevelRestricted, pod)
}

// violationsOf a level, newest version.
func violationsOf(t *testing.T, of api.Level, pod *corev1.Pod) []string {
	t.Helper()
	e, err := policy.NewEvaluator(policy.DefaultChecks(), nil)
	must(t, err)
	var out []string
	level := api.LevelVersion{Level: of, Version: api.LatestVersion()}
	for _, r := range e.EvaluatePod(level, &pod.ObjectMeta, &pod.Spec) {
		if !r.Allowed {
			out = append(out, r.ForbiddenReason+": "+r.ForbiddenDetail)
		}
	}
	return out
}

func TestDecodingIsStrict(t *testing.T) {
	for name, text := range map[string]string{
		"unknown field": "apiVersion: v1\nkind: Pod\nspec: {containerz: []}",
		"wrong type":    "apiVersion: v1\nkind: Pod\nspec: {enableServiceLinks: maybe}",
		"given twice":   "apiVersion: v1\nkind: Pod\nkind: Pod",
		"another kind":  "apiVersion: v1\nkind: Service",
	} {
		if _, err := decode([]byte(text)); err == nil {
			t.Errorf("%s: decoded", name)
		}
	}
}

func TestSidecarIsRestricted(t *testing.T) { eachSidecar(t, sidecarIsRestricted) }

func sidecarIsRestricted(t *testing.T, pod *corev1.Pod) {
	if got := violations(t, pod); len(got) > 0 {
		t.Errorf("restricted: %s", strings.Join(got, "; "))
	}
	// The check itself must be able to fail.
	pod.Spec.HostIPC = true
	pod.Spec.InitContainers[0].SecurityContext.Capabilities.Add = []corev1.Capability{"IPC_LOCK"}
	if got := violations(t, pod); len(got) != 2 {
		t.Errorf("a worse pod has %d violations: %q", len(got), got)
	}
}

func TestSidecarIsNativeAndUnprivileged(t *testing.T) { eachSidecar(t, sidecarIsNativeAndUnprivileged) }

func sidecarIsNativeAndUnprivileged(t *testing.T, pod *corev1.Pod) {
	c := pod.Spec.InitContainers[0]
	if c.RestartPolicy == nil || *c.RestartPolicy != corev1.ContainerRestartPolicyAlways {
		t.Error("restartPolicy Always is what makes it a sidecar that starts before the engine and ends after it")
	}
	if pod.Spec.AutomountServiceAccountToken == nil || *pod.Spec.AutomountServiceAccountToken {
		t.Error("no token of the cluster is needed")
	}
	if ro := c.SecurityContext.ReadOnlyRootFilesystem; ro == nil || !*ro {
		t.Error("the root file system can be read-only")
	}
}

func TestSocketDirectoryIsShared(t *testing.T) { eachSidecar(t, socketDirectoryIsShared) }

func socketDirectoryIsShared(t *testing.T, pod *corev1.Pod) {
	c, engine := pod.Spec.InitContainers[0], pod.Spec.Containers[0]
	socket := argument(t, c.Args, "socket")
	// The volume itself is writable for the whole pod: the daemon makes a directory in it.
	dir := path.Dir(path.Dir(socket))
	volumes := map[string]string{}
	for _, mounts := range [][]corev1.VolumeMount{c.VolumeMounts, engine.VolumeMounts} {
		for _, m := range mounts {
			// The directory, never the file: a restarted daemon makes a new one.
			if m.MountPath == dir && m.SubPath == "" {
				volumes[m.Name] += "+"
			}
		}
	}
	i := slices.IndexFunc(pod.Spec.Volumes, func(v corev1.Volume) bool { return volumes[v.Name] == "++" })
	if i < 0 || pod.Spec.Volumes[i].EmptyDir == nil {
		t.Fatalf("no emptyDir is mounted at %s by both: %v", dir, volumes)
	}
	for _, container := range []corev1.Container{c, engine} {
		if !slices.Contains(container.Env, corev1.EnvVar{Name: "SPLICED_SOCKET", Value: socket}) {
			t.Errorf("%s is not told %s", container.Name, socket)
		}
	}
	if pod.Spec.SecurityContext.FSGroup == nil {
		t.Error("without fsGroup an engine of another uid cannot connect")
	}
}

// What answers in a volume of the pod is believed by its user id, so that no other
// container may have the daemon's.
func TestEngineBelievesTheDaemonAlone(t *testing.T) { eachSidecar(t, engineBelievesTheDaemonAlone) }

func engineBelievesTheDaemonAlone(t *testing.T, pod *corev1.Pod) {
	runsAs := func(c *corev1.Container) int64 {
		if c.SecurityContext != nil && c.SecurityContext.RunAsUser != nil {
			return *c.SecurityContext.RunAsUser
		}
		return *pod.Spec.SecurityContext.RunAsUser
	}
	c, engine := &pod.Spec.InitContainers[0], &pod.Spec.Containers[0]
	for _, container := range []*corev1.Container{c, engine} {
		if !slices.Contains(container.Env, corev1.EnvVar{Name: "SPLICED_DAEMON_UID", Value: fmt.Sprint(runsAs(c))}) {
			t.Errorf("%s does not expect the daemon as user %d", container.Name, runsAs(c))
		}
	}
	if runsAs(c) == runsAs(engine) {
		t.Errorf("the engine runs as user %d, as the daemon: it would pass for it", runsAs(engine))
	}
}

func TestProbesAskPathsThatAreServed(t *testing.T) { eachSidecar(t, probesAskPathsThatAreServed) }

func probesAskPathsThatAreServed(t *testing.T, pod *corev1.Pod) {
	text, err := os.ReadFile("../../api/openapi.json")
	must(t, err)
	var document struct {
		Paths map[string]map[string]any
	}
	must(t, json.Unmarshal(text, &document))
	c := pod.Spec.InitContainers[0]
	port := argument(t, c.Args, "http")
	port = port[strings.LastIndexByte(port, ':')+1:]
	probes := map[string]*corev1.Probe{"/healthz": c.StartupProbe, "/livez": c.LivenessProbe, "/readyz": c.ReadinessProbe}
	for path, probe := range probes {
		if probe == nil || probe.HTTPGet == nil || probe.HTTPGet.Path != path {
			t.Errorf("%s: probe is %+v", path, probe)
			continue
		}
		if document.Paths[path]["get"] == nil {
			t.Errorf("%s is not in the API", path)
		}
		i := slices.IndexFunc(c.Ports, func(p corev1.ContainerPort) bool { return p.Name == probe.HTTPGet.Port.String() })
		if i < 0 || fmt.Sprint(c.Ports[i].ContainerPort) != port {
			t.Errorf("%s: port %s is not the one served, %s", path, probe.HTTPGet.Port.String(), port)
		}
	}
}

func TestMemoryLimitHoldsAllThatIsHandedOut(t *testing.T) { eachSidecar(t, memoryLimitHoldsAll) }

func memoryLimitHoldsAll(t *testing.T, pod *corev1.Pod) {
	c := pod.Spec.InitContainers[0]
	need := int64(overheadBytes)
	for _, name := range []string{"arena", "private", "connection-memory"} {
		q := resource.MustParse(strings.TrimSuffix(argument(t, c.Args, name), "B"))
		need += q.Value()
	}
	limit, request := c.Resources.Limits.Memory(), c.Resources.Requests.Memory()
	if limit.Value() < need {
		t.Errorf("limit %s, needed are %d bytes", limit, need)
	}
	if request.Cmp(*limit) != 0 {
		t.Errorf("request %s, limit %s: an arena fills up, so less than all of it is no request", request, limit)
	}
}

// The daemon of this tree reads the manifest's arguments; the last ones shrink
// what the machine of the test may not have.
func TestDaemonTakesTheArguments(t *testing.T) { eachSidecar(t, daemonTakesTheArguments) }

func daemonTakesTheArguments(t *testing.T, pod *corev1.Pod) {
	args := append([]string{"run", "./daemon/cmd/spliced", "-check"}, pod.Spec.InitContainers[0].Args...)
	args = append(args, "-arena=16MiB", "-private=16MiB", "-connection-memory=512MiB", "-socket="+t.TempDir()+"/spliced.sock")
	cmd := exec.CommandContext(t.Context(), "go", args...)
	cmd.Dir = "../.."
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v: %s", err, out)
	}
}

// One claim that both containers list is one GPU for both.
func TestBothContainersAreOnOneGPU(t *testing.T) {
	docs := documents(t, "sidecar-gpu.yaml")
	var claim resourcev1.ResourceClaimTemplate
	must(t, yaml.UnmarshalStrict(docs[0], &claim))
	pod, err := decode(docs[1])
	must(t, err)
	requests := claim.Spec.Spec.Devices.Requests
	if claim.APIVersion != "resource.k8s.io/v1" || len(requests) != 1 || requests[0].Exactly == nil {
		t.Errorf("%s asks for %+v", claim.APIVersion, requests)
	}
	claims := pod.Spec.ResourceClaims
	if len(claims) != 1 || claims[0].ResourceClaimTemplateName == nil || *claims[0].ResourceClaimTemplateName != claim.Name {
		t.Fatalf("the pod claims %+v, not %s", claims, claim.Name)
	}
	for _, c := range []corev1.Container{pod.Spec.InitContainers[0], pod.Spec.Containers[0]} {
		if !slices.Equal(c.Resources.Claims, []corev1.ResourceClaim{{Name: claims[0].Name}}) {
			t.Errorf("%s is on %+v", c.Name, c.Resources.Claims)
		}
	}
	// As many as the claim asks for, for an engine of so many ranks.
	if got := argument(t, pod.Spec.InitContainers[0].Args, "hbm-device"); got != "all" {
		t.Errorf("of the claim's GPUs the daemon takes %q", got)
	}
	kernelsAreKept(t, &pod.Spec.InitContainers[0])
}

// kernelsAreKept: a start compiles the kernels where the image's cache is not on a volume.
func kernelsAreKept(t *testing.T, c *corev1.Container) {
	t.Helper()
	dockerfile, err := os.ReadFile("../Dockerfile")
	must(t, err)
	for _, m := range c.VolumeMounts {
		if strings.Contains(string(dockerfile), "CUDA_CACHE_PATH="+m.MountPath+"\n") {
			return
		}
	}
	t.Error("no volume is mounted at the image's CUDA_CACHE_PATH")
}

// One daemon of a machine has all its GPUs, beside the engines that were given them.
func TestADaemonSetIsOnAllGPUs(t *testing.T) {
	objects := read(t, "daemonset-gpu.yaml")
	spec := the[*appsv1.DaemonSet](t, objects).Spec.Template.Spec
	daemon := spec.Containers[0]
	if spec.RuntimeClassName == nil || *spec.RuntimeClassName != "nvidia" || !slices.Contains(daemon.Env, corev1.EnvVar{Name: "NVIDIA_VISIBLE_DEVICES", Value: "all"}) {
		t.Error("the runtime does not give the daemon all GPUs")
	}
	if len(daemon.Resources.Claims) > 0 || len(daemon.Resources.Limits) != 1 {
		t.Error("the daemon asks the plugin for GPUs, which engines then do not get")
	}
	if got := argument(t, daemon.Args, "hbm-device"); got != "all" {
		t.Errorf("hbm-device is %q", got)
	}
	kernelsAreKept(t, &daemon)
	daemonTakesTheArguments(t, &corev1.Pod{Spec: corev1.PodSpec{InitContainers: []corev1.Container{daemon}}})
}

// argument finds -name=value.
func argument(t *testing.T, args []string, name string) string {
	t.Helper()
	for _, a := range args {
		if v, ok := strings.CutPrefix(a, "-"+name+"="); ok {
			return v
		}
	}
	t.Fatalf("no -%s among %q", name, args)
	return ""
}

// must ends a test at what has to work for it to go on. It costs a benchmark nothing.
func must(t testing.TB, err error) {
	if err != nil {
		t.Helper()
		t.Fatal(err)
	}
}
