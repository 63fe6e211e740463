package e2e

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sync/errgroup"

	"github.com/entente-dev/entente/integration/lab"
)

const (
	// SystemNamespace is where the chart is installed.
	SystemNamespace = "entente-system"
	// Release is the name of the Helm release.
	Release = "entente"
)

// Config says where things are. The zero Config takes what `make` built, in the
// repository around the working directory.
type Config struct {
	// Lab is the lab's name; default ENTENTE_LAB_NAME, else "e2e".
	Lab string
	// Root is the repository; default ENTENTE_ROOT, else above the working
	// directory.
	Root string
	// Image is the image's name and tag; default ENTENTE_IMAGE, else the chart's.
	// Archive holds it; default ENTENTE_IMAGE_TAR, else as `make image` writes it.
	Image, Archive string
	// CLI, Helm and Grpcurl are binaries; default as `make` builds them.
	CLI, Helm, Grpcurl string
	// Home and Abroad are the clusters' names to each other; default rome and
	// milan.
	Home, Abroad string
	// More are the names of further clusters.
	More []string
	// LAN is as lab.Options has it.
	LAN lab.LAN
	// Nodes is the number of nodes of each cluster; default 1. CheckKubelets is as
	// lab.Options has it.
	Nodes         int
	CheckKubelets bool
	// Kubernetes is as lab.Options has it; default the newest.
	Kubernetes string
	// CIDRs and Families are as lab.Options has them; default same, and ipv4.
	CIDRs    lab.CIDRs
	Families lab.Families
	// CNI, Subnets, IPAM, NoNodeCIDRs and Proxy are as in lab.Options. Where pods have other
	// addresses than their nodes' spec.podCIDRs, the agent learns them, as on clusters of kubeadm.
	CNI         lab.CNI
	Subnets     int
	IPAM        lab.IPAM
	NoNodeCIDRs bool
	Proxy       lab.Proxy
	// NamePodCIDRs gives the chart the prefix of all pods.
	NamePodCIDRs bool
	// Values are further Helm values, as for --set.
	Values []string
	// Waiting, if set, is called with what is waited for.
	Waiting func(what string)
}

func or(values ...string) string {
	for _, v := range values {
		if v != "" {
			return v
		}
	}
	return ""
}

// withDefaults fills in defaults and checks that everything is there.
func (c Config) withDefaults() (Config, error) {
	c.Lab = or(c.Lab, os.Getenv("ENTENTE_LAB_NAME"), "e2e")
	c.Home, c.Abroad = or(c.Home, "rome"), or(c.Abroad, "milan")
	var err error
	if c.Root = or(c.Root, os.Getenv("ENTENTE_ROOT")); c.Root == "" {
		if c.Root, err = findRoot(); err != nil {
			return c, err
		}
	}
	c.Image = or(c.Image, os.Getenv("ENTENTE_IMAGE"))
	c.Archive = or(c.Archive, os.Getenv("ENTENTE_IMAGE_TAR"), filepath.Join(c.Root, ".build/image/entente.tar"))
	c.CLI = or(c.CLI, os.Getenv("ENTENTE_CLI"), filepath.Join(c.Root, "bin/entente"))
	c.Helm = or(c.Helm, os.Getenv("ENTENTE_HELM"), filepath.Join(c.Root, ".build/bin/helm"))
	c.Grpcurl = or(c.Grpcurl, os.Getenv("ENTENTE_GRPCURL"), filepath.Join(c.Root, ".build/bin/grpcurl"))
	if c.Waiting == nil {
		c.Waiting = func(string) {}
	}
	for _, f := range []struct{ file, target string }{
		{c.Archive, "image"}, {c.CLI, "build"}, {c.Helm, "demo"}, {c.Grpcurl, "demo"},
	} {
		if _, err := os.Stat(f.file); err != nil {
			return c, fmt.Errorf("%w: run `make %s` first", err, f.target)
		}
	}
	return c, nil
}

// findRoot finds the repository above the working directory.
func findRoot() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for ; ; dir = filepath.Dir(dir) {
		if _, err := os.Stat(filepath.Join(dir, "charts/entente/Chart.yaml")); err == nil {
			return dir, nil
		}
		if dir == filepath.Dir(dir) {
			return "", errors.New("not inside the repository: set ENTENTE_ROOT")
		}
	}
}

// World is two clusters with the same addresses, or more.
type World struct {
	Config
	Lab *lab.Lab
	// Home consumes, Abroad provides.
	Home, Abroad *Side
	// More are further clusters.
	More []*Side
}

// Up brings the clusters up, or finds them up. Nothing is installed yet.
func Up(ctx context.Context, cfg Config) (*World, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	w := &World{Config: cfg}
	if err := lab.InstallPackages(ctx, cfg.Waiting); err != nil {
		return nil, err
	}
	shape := lab.Options{
		Name: cfg.Lab, Clusters: 2 + len(cfg.More), Nodes: cfg.Nodes, CIDRs: cfg.CIDRs, Families: cfg.Families, LAN: cfg.LAN, CheckKubelets: cfg.CheckKubelets, Kubernetes: cfg.Kubernetes,
		CNI: cfg.CNI, Subnets: cfg.Subnets, IPAM: cfg.IPAM, NoNodeCIDRs: cfg.NoNodeCIDRs, Proxy: cfg.Proxy,
	}
	if w.Lab, err = lab.Up(ctx, shape, cfg.Waiting); err != nil {
		return nil, err
	}
	kubectl, err := lab.BinaryPath(ctx, "kubectl", cfg.Waiting)
	if err != nil {
		return nil, err
	}
	plan := w.Lab.Plan()
	if w.Home, err = openSide(w, cfg.Home, plan.Clusters[0], kubectl); err != nil {
		return nil, err
	}
	if w.Abroad, err = openSide(w, cfg.Abroad, plan.Clusters[1], kubectl); err != nil {
		return nil, err
	}
	w.Home.Other, w.Abroad.Other = w.Abroad, w.Home
	for i, name := range cfg.More {
		s, err := openSide(w, name, plan.Clusters[2+i], kubectl)
		if err != nil {
			return nil, err
		}
		s.Other = w.Home
		w.More = append(w.More, s)
	}
	return w, nil
}

// Down takes the clusters away, and says so if something of them is left.
func (w *World) Down(ctx context.Context) error {
	w.Wait("processes, mounts and cgroups to go")
	if err := lab.Down(ctx, w.Config.Lab); err != nil {
		return err
	}
	status, err := lab.ReadStatus(ctx, w.Config.Lab)
	if err != nil {
		return err
	}
	if status.State != lab.StateDown {
		return fmt.Errorf("lab %s is %s after it was taken down: %s", w.Config.Lab, status.State, status.Error)
	}
	return nil
}

// Sides are all clusters, home first.
func (w *World) Sides() []*Side { return append([]*Side{w.Home, w.Abroad}, w.More...) }

// Each does something for all clusters at once.
func (w *World) Each(ctx context.Context, do func(context.Context, *Side) error) error {
	g, ctx := errgroup.WithContext(ctx)
	for _, s := range w.Sides() {
		g.Go(func() error {
			if err := do(ctx, s); err != nil {
				return fmt.Errorf("%s: %w", s.Name, err)
			}
			return nil
		})
	}
	return g.Wait()
}

// LoadImage imports the image into all nodes.
func (w *World) LoadImage(ctx context.Context) error {
	w.Wait("the nodes to import the image")
	_, err := w.Lab.Load(ctx, w.Archive)
	return err
}

// Wait prints what is waited for.
func (w *World) Wait(what string) { w.Waiting(what) }

// helmList is a list as --set has it.
func helmList(prefixes []netip.Prefix) string {
	var all []string
	for _, p := range prefixes {
		all = append(all, p.String())
	}
	return "{" + strings.Join(all, ",") + "}"
}

// InstallArgs are helm's arguments for installing the chart in a cluster.
func (w *World) InstallArgs(s *Side) []string {
	args := []string{
		"upgrade", "--install", Release, filepath.Join(w.Root, "charts/entente"),
		"--namespace", SystemNamespace, "--create-namespace",
		"--set", "cluster.name=" + s.Name,
		"--set", "cluster.serviceCIDRs=" + helmList(s.Plan.ServiceCIDRs()),
		"--wait", "--timeout", "3m",
	}
	if i := strings.LastIndex(w.Image, ":"); i > 0 {
		args = append(args, "--set", "image.repository="+w.Image[:i], "--set-string", "image.tag="+w.Image[i+1:])
	}
	values := slices.Concat(w.Values, s.Values)
	if w.NamePodCIDRs {
		values = append(values, "cluster.podCIDRs="+helmList(s.Plan.PodCIDRs()))
	}
	for _, v := range values {
		args = append(args, "--set", v)
	}
	return args
}

// Install installs the chart in a cluster and waits until it is ready.
func (w *World) Install(ctx context.Context, s *Side) error {
	w.Wait("helm to install, and the agent and the fabric to be ready")
	_, err := s.Helm(ctx, w.InstallArgs(s)...)
	return err
}

// Uninstall removes the release and then its namespace, which Helm leaves.
func (w *World) Uninstall(ctx context.Context, s *Side) error {
	w.Wait("helm to uninstall")
	if _, err := s.Helm(ctx, "uninstall", Release, "--namespace", SystemNamespace, "--wait", "--timeout", "4m"); err != nil {
		return err
	}
	_, err := s.Kubectl(ctx, "delete", "namespace", SystemNamespace, "--timeout=60s")
	return err
}

// Cut loses all packets between the clusters; Heal ends that.
func (w *World) Cut(ctx context.Context) error {
	_, err := w.Lab.Fault(ctx, lab.FaultRequest{Kind: "cut", A: w.Home.Plan.Name, B: w.Abroad.Plan.Name})
	return err
}

// NAT puts a cluster behind address translation: it can dial out, but not be dialled. Heal ends
// that.
func (w *World) NAT(ctx context.Context, s *Side) error {
	_, err := w.Lab.Fault(ctx, lab.FaultRequest{Kind: "nat", A: s.Plan.Name})
	return err
}

// Readdress switches a cluster's node off and on again with another address, as
// lab.Readdress does, and waits until its API server answers.
func (w *World) Readdress(ctx context.Context, s *Side, to netip.Addr) error {
	if err := w.Lab.Readdress(ctx, s.Node(), to); err != nil {
		return err
	}
	var err error
	if s.Plan, err = w.Lab.Plan().Cluster(s.Plan.Name); err != nil {
		return err
	}
	return w.Until(ctx, Restarted, "the API server of "+s.Name+" to answer", func(ctx context.Context) (string, error) {
		_, err := s.Kubectl(ctx, "get", "--raw", "/readyz")
		return "", err
	})
}

// OnInternet runs a command of this machine on the router between the clusters.
func (w *World) OnInternet(ctx context.Context, argv ...string) (string, error) {
	return w.On(ctx, lab.Internet, argv...)
}

// Heal ends all faults of the internet.
func (w *World) Heal(ctx context.Context) error {
	_, err := w.Lab.Fault(ctx, lab.FaultRequest{Kind: "heal"})
	return err
}
