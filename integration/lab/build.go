package lab

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// component is one set of binaries, built together from one Go module and
// cached together under the hash of everything that goes into it.
type component struct {
	name string
	// module is the folder of the Go module, under the lab's folder.
	module string
	// builds are the go build runs; all write into one folder.
	builds []build
	// files are copied from the modules that the component is built from:
	// module path, folder inside it, and names.
	files []moduleFiles
	// own are files in the module's own folder that are copied as well.
	own []string
	// patches are the changes to these modules before they are built.
	patches []patch
	// links are further names of files: name to file.
	links map[string]string
	// sources are the folders under the lab's folder whose files count for
	// the hash; default module.
	sources []string
}

type build struct {
	packages []string
	tags     string
	ldflags  string
	output   string // file name, if one package is to be called otherwise
}

type moduleFiles struct {
	module string
	names  []string // paths of files and folders inside the module, slash-separated
}

// Versions that show up in the binaries; go.mod decides what is built.
const (
	containerdVersion = "v2.4.2"
	coreDNSVersion    = "v1.15.0"
)

const (
	staticTags = "osusergo,netgo"
	smallLink  = "-s -w"
)

// kubeRelease is a version of Kubernetes that the lab runs, and the folder of the module that
// pins it.
type kubeRelease struct{ minor, version, module string }

// kubeReleases are the newest and the oldest that Entente supports, and some between, the newest first.
func kubeReleases() []kubeRelease {
	return []kubeRelease{{"1.37", "v1.37.1", "kube"}, {"1.34", "v1.34.4", "kube134"}, {"1.33", "v1.33.5", "kube133"}, {"1.32", "v1.32.9", "kube132"}}
}

// kubeOf returns the release with a minor version; empty means the newest.
func kubeOf(minor string) (kubeRelease, error) {
	var all []string
	for _, r := range kubeReleases() {
		if minor == r.minor || minor == "" {
			return r, nil
		}
		all = append(all, r.minor)
	}
	return kubeRelease{}, fmt.Errorf("version %q of Kubernetes: want one of %s", minor, strings.Join(all, ", "))
}

func kubeComponent(r kubeRelease) component {
	const version = " -X k8s.io/component-base/version."
	ldflags := smallLink + version + "gitVersion=" + r.version + version + "gitMajor=1" + version + "gitMinor=" + strings.TrimPrefix(r.minor, "1.")
	return component{name: "kube", module: r.module, builds: []build{
		{packages: []string{"."}, tags: staticTags, ldflags: ldflags, output: "kube"},
	}, links: map[string]string{
		"kubectl": "kube", "etcd": "kube", "kube-apiserver": "kube", "kube-controller-manager": "kube",
		"kube-scheduler": "kube", "kubelet": "kube", "kube-proxy": "kube",
	}}
}

func nodeComponent() component {
	const containerd, plugins = "github.com/containerd/containerd/v2/", "github.com/containernetworking/plugins/plugins/"
	return component{name: "node", module: "node", builds: []build{
		{
			packages: []string{containerd + "cmd/containerd", containerd + "cmd/containerd-shim-runc-v2", containerd + "cmd/ctr"},
			tags:     staticTags + ",no_btrfs,no_devmapper,no_zfs,no_aufs",
			ldflags:  smallLink + " -X " + containerd + "version.Version=" + containerdVersion,
		},
		{
			packages: []string{plugins + "main/bridge", plugins + "ipam/host-local", plugins + "main/loopback", plugins + "meta/portmap"},
			tags:     staticTags,
			ldflags:  smallLink,
		},
	}}
}

// ptpComponent is a plugin of node's module, which only pools need.
func ptpComponent() component {
	return component{name: "ptp", module: "node", builds: []build{
		{packages: []string{"github.com/containernetworking/plugins/plugins/main/ptp"}, tags: staticTags, ldflags: smallLink},
	}}
}

func flannelComponent() component {
	return component{name: "flannel", module: "flannel", builds: []build{
		{packages: []string{"."}, tags: staticTags, ldflags: smallLink, output: "flannel"},
	}}
}

func coreDNSComponent() component {
	return component{name: "coredns", module: "coredns", builds: []build{
		{packages: []string{"."}, tags: staticTags, ldflags: smallLink, output: "coredns"},
	}}
}

func kwokComponent() component {
	return component{
		name: "kwok", module: "kwok",
		builds: []build{
			{packages: []string{"sigs.k8s.io/kwok/cmd/kwok"}, tags: staticTags, ldflags: smallLink},
		},
		files: []moduleFiles{{module: "sigs.k8s.io/kwok", names: []string{
			"kustomize/stage/node/fast/node-initialize.yaml",
			"kustomize/stage/node/heartbeat-with-lease/node-heartbeat-with-lease.yaml",
			"kustomize/stage/pod/fast/pod-ready.yaml",
			"kustomize/stage/pod/fast/pod-complete.yaml",
		}}},
		own: []string{"pod-delete.yaml"},
	}
}

func metricsServerComponent() component {
	return component{name: "metricsserver", module: "metricsserver", builds: []build{
		{packages: []string{"sigs.k8s.io/metrics-server/cmd/metrics-server"}, tags: staticTags, ldflags: smallLink},
	}}
}

// traefikComponent comes with the definitions of the Gateway API.
func traefikComponent() component {
	var crds []string
	for _, kind := range gatewayKinds() {
		crds = append(crds, "config/crd/standard/"+kind)
	}
	return component{
		name: "traefik", module: "traefik", sources: []string{"traefik", "traefik/ext", "traefik/dns"},
		patches: []patch{{module: "github.com/go-acme/lego/v5", folder: "providers/dns", files: "traefik/dns"}},
		builds: []build{
			{packages: []string{"github.com/traefik/traefik/v3/cmd/traefik"}, tags: staticTags, ldflags: smallLink},
		},
		files: []moduleFiles{{module: "sigs.k8s.io/gateway-api", names: crds}},
	}
}

// gatewayKinds are the files with what a Gateway and its routes are made of.
func gatewayKinds() (files []string) {
	for _, kind := range []string{"backendtlspolicies", "gatewayclasses", "gateways", "grpcroutes", "httproutes", "listenersets", "referencegrants", "tlsroutes"} {
		files = append(files, "gateway.networking.k8s.io_"+kind+".yaml")
	}
	return files
}

// kueueComponent comes with Kueue's chart, in the folder kueue.
func kueueComponent() component {
	return component{
		name: "kueue", module: "kueue",
		builds: []build{
			{packages: []string{"sigs.k8s.io/kueue/cmd/kueue"}, tags: staticTags, ldflags: smallLink, output: "manager"},
		},
		files: []moduleFiles{{module: "sigs.k8s.io/kueue", names: []string{"charts/kueue"}}},
	}
}

// kubeRouterComponent enforces NetworkPolicies, and nothing else of what it can.
func kubeRouterComponent() component {
	return component{name: "kuberouter", module: "kuberouter", builds: []build{
		{packages: []string{"github.com/cloudnativelabs/kube-router/v2/cmd/kube-router"}, tags: staticTags, ldflags: smallLink},
	}}
}

// KubeRouter builds kube-router, which takes minutes the first time, and returns its path. It runs ipset.
func KubeRouter(ctx context.Context, progress func(string)) (program string, err error) {
	c := kubeRouterComponent()
	if err := InstallHostPrograms(ctx, progress, "ipset"); err != nil {
		return "", err
	}
	bins, err := buildComponents(ctx, []component{c}, progress)
	return bins.Path(c.name, "kube-router"), err
}

// e2eComponent is part of Kubernetes' end-to-end tests, with programs of the images that they run.
func e2eComponent() component {
	const images = "k8s.io/kubernetes/test/images/"
	return component{name: "e2e", module: "e2e", builds: []build{
		{packages: []string{".", images + "agnhost", images + "nonewprivs"}, tags: staticTags, ldflags: smallLink},
	}, files: []moduleFiles{{module: "k8s.io/kubernetes", names: []string{
		"test/images/agnhost/porter/localhost.crt", "test/images/agnhost/porter/localhost.key",
		"test/images/nautilus/html/data.json", "test/images/nautilus/html/nautilus.jpg",
	}}}}
}

// KubernetesTests builds those of Kubernetes' end-to-end tests that are of pods, which takes many
// minutes the first time, and returns the folder with them, as e2e, and with what their images are
// made of.
func KubernetesTests(ctx context.Context, progress func(string)) (dir string, err error) {
	bins, err := buildComponents(ctx, []component{e2eComponent()}, progress)
	return bins["e2e"], err
}

func imageComponent() component {
	return component{name: "image", module: ".", sources: []string{"image/pause", "image/tool"}, builds: []build{
		{packages: []string{"./image/pause", "./image/tool"}, tags: staticTags, ldflags: smallLink},
	}}
}

// needed lists the components that a lab with these options runs.
func needed(o Options) []component {
	kube, err := kubeOf(o.Kubernetes)
	if err != nil { // options are checked before
		panic(err)
	}
	cs := []component{kubeComponent(kube)}
	if !o.Light {
		cs = append(cs, nodeComponent(), coreDNSComponent(), imageComponent())
	}
	if o.FakeNodes > 0 {
		cs = append(cs, kwokComponent())
	}
	if o.IPAM == PoolIPAM || o.IPAM == SharedPoolIPAM {
		cs = append(cs, ptpComponent())
	}
	if o.CNI == FlannelCNI {
		cs = append(cs, flannelComponent())
	}
	return cs
}

// allComponents lists everything that the lab can build, of Kubernetes the newest.
func allComponents() []component {
	return []component{kubeComponent(kubeReleases()[0]), nodeComponent(), coreDNSComponent(), imageComponent(), kwokComponent(), ptpComponent(), flannelComponent()}
}

// Binaries are the folders of built components, by component name.
type Binaries map[string]string

// Path of one file of a component.
func (b Binaries) Path(component, file string) string { return filepath.Join(b[component], file) }

// CacheDir is where built binaries are kept: entente-lab in XDG_CACHE_HOME or
// the home directory's .cache.
func CacheDir() (string, error) {
	d, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("find the cache directory: %w", err)
	}
	return filepath.Join(d, "entente-lab"), nil
}

// Build makes the components that o needs, or takes them from the cache, and reports to progress
// what it does and how long that took the last time.
func Build(ctx context.Context, o Options, progress func(string)) (Binaries, error) {
	return buildComponents(ctx, needed(o), progress)
}

// BuildAll is Build for everything that any lab may need.
func BuildAll(ctx context.Context, progress func(string)) (Binaries, error) {
	return buildComponents(ctx, allComponents(), progress)
}

// BinaryPath returns the path of one binary of the cache, such as kubectl, and
// builds it if need be.
func BinaryPath(ctx context.Context, name string, progress func(string)) (string, error) {
	return BinaryPathOf(ctx, "", name, progress)
}

// BinaryPathOf is BinaryPath of a version of Kubernetes; empty means the newest.
func BinaryPathOf(ctx context.Context, kubernetes, name string, progress func(string)) (string, error) {
	release, err := kubeOf(kubernetes)
	if err != nil {
		return "", err
	}
	for _, c := range append([]component{kubeComponent(release)}, allComponents()...) {
		if !slices.Contains(c.programs(), name) {
			continue
		}
		bins, err := buildComponents(ctx, []component{c}, progress)
		if err != nil {
			return "", err
		}
		return bins.Path(c.name, name), nil
	}
	return "", fmt.Errorf("the lab has no binary %q", name)
}

// programs are the names of the component's binaries.
func (c component) programs() []string {
	var names []string
	for n := range c.links {
		names = append(names, n)
	}
	for _, b := range c.builds {
		if b.output != "" {
			names = append(names, b.output)
			continue
		}
		for _, p := range b.packages {
			names = append(names, path.Base(p))
		}
	}
	return names
}

func buildComponents(ctx context.Context, cs []component, progress func(string)) (Binaries, error) {
	source, err := sourceDir()
	if err != nil {
		return nil, err
	}
	cache, err := CacheDir()
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(cache, 0o755); err != nil {
		return nil, err
	}
	bins := Binaries{}
	for _, c := range cs {
		dir, err := c.ensure(ctx, source, cache, progress)
		if err != nil {
			return nil, fmt.Errorf("build %s: %w", c.name, err)
		}
		bins[c.name] = dir
	}
	return bins, nil
}

// ensure returns the folder of c's files, after building them if need be.
func (c component) ensure(ctx context.Context, source, cache string, progress func(string)) (string, error) {
	key, err := c.key(source, runtime.Version(), runtime.GOOS, runtime.GOARCH)
	if err != nil {
		return "", err
	}
	dir := filepath.Join(cache, c.name+"-"+key)
	if _, err := os.Stat(dir); err == nil {
		return dir, nil
	}
	// Others may be building the same: one does, the others wait.
	unlock, err := lockFile(ctx, filepath.Join(cache, c.name+".lock"), func() {
		progress("waiting for " + c.name + ", which another process builds")
	})
	if err != nil {
		return "", err
	}
	defer unlock()
	if _, err := os.Stat(dir); err == nil {
		return dir, nil
	}
	history := filepath.Join(cache, "times.json")
	if last, ok := readTimes(history)[c.name]; ok {
		progress(fmt.Sprintf("building %s (last time this took %s)", c.name, took(last)))
	} else {
		progress(fmt.Sprintf("building %s (first time here: may take minutes)", c.name))
	}
	begin := time.Now()
	// We hold the lock: what is there is left of a build that was killed.
	if stale, err := filepath.Glob(filepath.Join(cache, ".building-"+c.name+"-*")); err == nil {
		for _, d := range stale {
			_ = os.RemoveAll(d)
		}
	}
	tmp, err := os.MkdirTemp(cache, ".building-"+c.name+"-")
	if err != nil {
		return "", err
	}
	defer func() { _ = os.RemoveAll(tmp) }()
	if err := os.Chmod(tmp, 0o755); err != nil {
		return "", err
	}
	if err := c.build(ctx, source, tmp, progress); err != nil {
		return "", err
	}
	if err := os.Rename(tmp, dir); err != nil {
		return "", err
	}
	progress(fmt.Sprintf("built %s in %s", c.name, took(time.Since(begin))))
	return dir, recordTime(history, c.name, time.Since(begin))
}

func (c component) build(ctx context.Context, source, to string, progress func(string)) error {
	module := filepath.Join(source, c.module)
	patches, err := os.MkdirTemp("", "entente-lab-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(patches) }()
	modfile, err := c.patched(ctx, source, patches)
	if err != nil {
		return err
	}
	compiled := &lineCounter{}
	defer c.report(progress, compiled)()
	for _, b := range c.builds {
		out := to + string(filepath.Separator)
		if b.output != "" {
			out = filepath.Join(to, b.output)
		}
		args := append([]string{"build", "-v", "-trimpath", "-modfile=" + modfile, "-tags", b.tags, "-ldflags", b.ldflags, "-o", out}, b.packages...)
		if _, err := goCommand(ctx, module, compiled, args...); err != nil {
			return err
		}
	}
	for name, file := range c.links {
		if err := os.Symlink(file, filepath.Join(to, name)); err != nil {
			return err
		}
	}
	for _, f := range c.files {
		out, err := goCommand(ctx, module, nil, "list", "-m", "-f", "{{.Dir}}", f.module)
		if err != nil {
			return err
		}
		for _, n := range f.names {
			if err := copyOut(filepath.Join(strings.TrimSpace(string(out)), filepath.FromSlash(n)), filepath.Join(to, filepath.Base(n))); err != nil {
				return err
			}
		}
	}
	for _, n := range c.own {
		if err := copyOut(filepath.Join(module, n), filepath.Join(to, n)); err != nil {
			return err
		}
	}
	return nil
}

// copyOut copies a file or a folder of a module, where all is read-only.
func copyOut(from, to string) error {
	info, err := os.Stat(from)
	if err != nil {
		return err
	}
	if info.IsDir() {
		return os.CopyFS(to, os.DirFS(from))
	}
	b, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	return os.WriteFile(to, b, 0o644)
}

// reportEvery is how often a build that takes long says how far it is.
const reportEvery = 20 * time.Second

// report reports the progress of a build, until the function that it returns is called.
func (c component) report(progress func(string), compiled *lineCounter) (stop func()) {
	begin, done := time.Now(), make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		t := time.NewTicker(reportEvery)
		defer t.Stop()
		for {
			select {
			case <-done:
				return
			case <-t.C:
				progress(fmt.Sprintf("building %s: %d packages compiled in %s", c.name, compiled.lines.Load(), took(time.Since(begin))))
			}
		}
	})
	return func() { close(done); wg.Wait() }
}

// lineCounter counts the lines that are written to it.
type lineCounter struct{ lines atomic.Int64 }

func (l *lineCounter) Write(b []byte) (int, error) {
	l.lines.Add(int64(bytes.Count(b, []byte("\n"))))
	return len(b), nil
}

// goCommand runs the go command in a module, for this machine and without a
// workspace file, and returns what it prints. What it says on its way goes to
// also, unless nil.
func goCommand(ctx context.Context, module string, also io.Writer, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = module
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOWORK=off", "GOOS="+runtime.GOOS, "GOARCH="+runtime.GOARCH, "PWD="+module)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if also != nil {
		cmd.Stderr = io.MultiWriter(&errs, also)
	}
	if err := cmd.Run(); err != nil {
		return nil, fmt.Errorf("go %s: %w\n%s", args[0], err, tail(errs.String(), 20))
	}
	return out.Bytes(), nil
}

// key is the hash of all that decides what c's files will be: the module's own
// files (go.sum pins the rest), the flags, the Go release and the platform.
func (c component) key(source string, facts ...string) (string, error) {
	h := sha256.New()
	fmt.Fprintf(h, "%q %q %+v %+v %v\n", c.name, facts, c.builds, c.files, c.links)
	if len(c.patches) > 0 {
		fmt.Fprintf(h, "%+v\n", c.patches)
	}
	for _, n := range c.own {
		b, err := os.ReadFile(filepath.Join(source, c.module, n))
		if err != nil {
			return "", err
		}
		fmt.Fprintf(h, "%s %d\n%s", n, len(b), b)
	}
	sources := c.sources
	if sources == nil {
		sources = []string{c.module}
	}
	for _, s := range sources {
		if err := hashFolder(h, source, s); err != nil {
			return "", err
		}
	}
	return hex.EncodeToString(h.Sum(nil))[:16], nil
}

// hashFolder adds the Go and module files directly in a folder, tests aside.
func hashFolder(h io.Writer, source, folder string) error {
	entries, err := os.ReadDir(filepath.Join(source, folder))
	if err != nil {
		return err
	}
	for _, e := range entries {
		n := e.Name()
		counts := n == "go.mod" || n == "go.sum" || strings.HasSuffix(n, ".go") && !strings.HasSuffix(n, "_test.go")
		if e.IsDir() || !counts {
			continue
		}
		b, err := os.ReadFile(filepath.Join(source, folder, n))
		if err != nil {
			return err
		}
		fmt.Fprintf(h, "%s/%s %d\n%s", folder, n, len(b), b)
	}
	return nil
}

// sourceDir finds the folder of this package's source, which the go command
// needs: above the working directory, above the running binary, or where this
// file was compiled.
func sourceDir() (string, error) {
	var starts []string
	if wd, err := os.Getwd(); err == nil {
		starts = append(starts, wd)
	}
	if exe, err := os.Executable(); err == nil {
		starts = append(starts, filepath.Dir(exe))
	}
	if _, file, _, ok := runtime.Caller(0); ok {
		starts = append(starts, filepath.Dir(file))
	}
	for _, s := range starts {
		for d := s; ; d = filepath.Dir(d) {
			for _, lab := range []string{filepath.Join(d, "integration", "lab"), filepath.Join(d, "lab"), d} {
				if _, err := os.Stat(filepath.Join(lab, "kube", "go.sum")); err == nil {
					return lab, nil
				}
			}
			if filepath.Dir(d) == d {
				break
			}
		}
	}
	return "", errors.New("the lab's source (integration/lab) is neither above the working directory nor above the binary: run from a clone of the repository")
}

// readTimes reads how long each component took to build; nothing if unreadable.
func readTimes(file string) map[string]time.Duration {
	m := map[string]time.Duration{}
	b, err := os.ReadFile(file)
	if err != nil || json.Unmarshal(b, &m) != nil {
		return map[string]time.Duration{}
	}
	return m
}

func recordTime(file, name string, d time.Duration) error {
	m := readTimes(file)
	m[name] = d
	return writeJSON(file, m, 0o644)
}

// writeJSON replaces a file in one step.
func writeJSON(file string, v any, mode fs.FileMode) error {
	b, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return err
	}
	tmp, err := os.CreateTemp(filepath.Dir(file), ".tmp-")
	if err != nil {
		return err
	}
	defer func() { _ = os.Remove(tmp.Name()) }()
	_, err = tmp.Write(append(b, '\n'))
	if err := errors.Join(err, tmp.Chmod(mode), tmp.Close()); err != nil {
		return err
	}
	return os.Rename(tmp.Name(), file)
}

// tail is the last n lines of s.
func tail(s string, n int) string {
	lines := strings.Split(strings.TrimRight(s, "\n"), "\n")
	return strings.Join(slices.Clip(lines[max(0, len(lines)-n):]), "\n")
}

// kwokStages are the files that define for kwok what its nodes and pods do.
func kwokStages() []string {
	c := kwokComponent()
	names := slices.Clone(c.own)
	for _, f := range c.files {
		for _, n := range f.names {
			names = append(names, filepath.Base(n))
		}
	}
	return names
}
