// Command lab runs real Kubernetes clusters on one Linux machine and disturbs
// the network between them.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/entente-dev/entente/integration/lab"
)

const usage = `lab runs real Kubernetes clusters on one Linux machine.

usage: lab [--name NAME] COMMAND

  up [--clusters N] [--nodes M] [--cidrs same|distinct] [--families ipv4|ipv6|dual]
     [--lan separate|shared] [--light] [--fake-nodes F] [--check-kubelets]
     [--kubernetes 1.37|1.34|1.33|1.32]
     [--subnets 1|2] [--cni bridge|flannel] [--ipam node|pool|shared-pool]
     [--no-node-cidrs] [--proxy nftables|iptables]
                            make clusters NAME-1, NAME-2, …; ready when it returns
  down [--all]              remove the lab completely, even after a crash
  status [-o json]          what runs, and which faults are set
  kubeconfig [--internal] CLUSTER
                            path of a kubeconfig for this machine, or for use inside the lab
  kubectl CLUSTER ARGS…     run kubectl against a cluster
  exec [--inside] NODE -- CMD…
                            run CMD in NODE's network namespace; --inside: in its
                            file system too. NODE "internet" is the router
  load [--to NODE|CLUSTER] IMAGE.tar
                            import an image archive into all nodes
  build                     build and cache every binary that labs use
  bin [--kubernetes VERSION] NAME
                            path of a cached binary: kubectl, etcd, kube-apiserver, ctr, …

faults on the internet between clusters:

  cut A B                   lose all packets between A and B
  loss A B PERCENT          lose some of them
  delay A B DURATION        delay them, each way
  nat A [off]               A can dial out, but cannot be dialled
  heal [A [B]]              end all faults, A's faults, or those between A and B
  stop NODE, start NODE     switch a node off and on
  capture [--for D] A B FILE.pcap
                            record packets between A and B until Ctrl-C

with --lan shared, where all nodes are on one LAN (delay and nat need a router):

  host [--lan 2] NAME [-- CMD…]
                            make a machine on the LAN, and run CMD of this machine on it
  host --remove NAME        remove it
  readdress NODE ADDRESS    switch NODE off and on with another address: 172.30.C.x on
                            the LAN, C being the cluster's number, 172.29.C.x on another

Clusters may be named by number: lab cut 1 2. The lab's name is "lab" unless
--name or ENTENTE_LAB_NAME sets another one.
`

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if hidden, err := lab.Hidden(ctx, os.Args[1:]); hidden {
		exit(err)
	}
	exit(run(ctx, os.Args[1:]))
}

func exit(err error) {
	var e *exec.ExitError
	switch {
	case err == nil, errors.Is(err, flag.ErrHelp):
		os.Exit(0)
	case errors.As(err, &e) && e.ExitCode() > 0:
		os.Exit(e.ExitCode())
	}
	fmt.Fprintln(os.Stderr, "lab:", err)
	os.Exit(1)
}

// command is one run of the lab command.
type command struct {
	name string // the lab's
	args []string
	out  io.Writer
}

func run(ctx context.Context, args []string) error {
	fs := flag.NewFlagSet("lab", flag.ContinueOnError)
	fs.Usage = func() { fmt.Fprint(os.Stderr, usage) }
	name := fs.String("name", envOr("ENTENTE_LAB_NAME", lab.DefaultName), "")
	if err := fs.Parse(args); err != nil {
		return err
	}
	if fs.NArg() == 0 {
		fs.Usage()
		return nil
	}
	c := &command{name: *name, args: fs.Args()[1:], out: os.Stdout}
	commands := map[string]func(context.Context) error{
		"up": c.up, "down": c.down, "status": c.status, "kubeconfig": c.kubeconfig, "kubectl": c.kubectl,
		"exec": c.exec, "load": c.load, "build": c.build, "bin": c.bin,
		"cut": c.fault("cut"), "heal": c.fault("heal"), "loss": c.fault("loss"), "delay": c.fault("delay"), "nat": c.fault("nat"),
		"stop": c.node("stop"), "start": c.node("start"), "capture": c.capture,
		"host": c.host, "readdress": c.readdress,
		"help": func(context.Context) error { fs.Usage(); return nil },
	}
	f, ok := commands[fs.Arg(0)]
	if !ok {
		return fmt.Errorf("no command %q; lab help lists them", fs.Arg(0))
	}
	return f(ctx)
}

func envOr(key, otherwise string) string {
	if v := os.Getenv(key); v != "" {
		return v
	}
	return otherwise
}

// parse reads flags at any position and returns the other arguments, of which there have to be
// least to most.
func (c *command) parse(fs *flag.FlagSet, least, most int) ([]string, error) {
	fs.StringVar(&c.name, "name", c.name, "name of the lab")
	var rest []string
	for args := c.args; ; {
		if err := fs.Parse(args); err != nil {
			return nil, err
		}
		if fs.NArg() == 0 {
			break
		}
		// An argument after "--" is not a flag.
		if n := len(args) - fs.NArg(); n > 0 && args[n-1] == "--" {
			rest = append(rest, fs.Args()...)
			break
		}
		rest = append(rest, fs.Arg(0))
		args = fs.Args()[1:]
	}
	if len(rest) < least || len(rest) > most {
		return nil, fmt.Errorf("%s: wrong number of arguments; lab help", fs.Name())
	}
	return rest, nil
}

func flags(name string) *flag.FlagSet { return flag.NewFlagSet(name, flag.ContinueOnError) }

// reporter prints what happens, with the time since the start.
func reporter(w io.Writer) func(string) {
	begin := time.Now()
	return func(line string) { fmt.Fprintf(w, "%6.1fs  %s\n", time.Since(begin).Seconds(), line) }
}

// upOptions reads the arguments of up.
func (c *command) upOptions() (lab.Options, error) {
	var o lab.Options
	fs := flags("up")
	fs.IntVar(&o.Clusters, "clusters", 2, "number of clusters")
	fs.IntVar(&o.Nodes, "nodes", 1, "nodes of each cluster")
	cidrs := fs.String("cidrs", string(lab.SameCIDRs), "pod and service prefixes: same or distinct")
	families := fs.String("families", string(lab.IPv4Only), "IP families of nodes, pods and Services: ipv4, ipv6, or dual for both; several, such as ipv4,dual, are those of the clusters in turn")
	lan := fs.String("lan", string(lab.SeparateLANs), "LANs of the clusters: separate, with a router between them, or one that they share")
	fs.IntVar(&o.Subnets, "subnets", 1, "networks between which the nodes of a cluster alternate, with the router between them")
	cni := fs.String("cni", string(lab.BridgeCNI), "network plugin: bridge, with routes between nodes, or flannel, with vxlan and its own masquerading")
	ipam := fs.String("ipam", string(lab.NodeIPAM), "addresses of pods: from the node's podCIDR (node), from blocks outside of it (pool), or from blocks and single addresses of another node's (shared-pool)")
	fs.BoolVar(&o.NoNodeCIDRs, "no-node-cidrs", false, "nodes have no spec.podCIDRs")
	proxy := fs.String("proxy", string(lab.NFTablesProxy), "mode of kube-proxy: nftables or iptables")
	fs.BoolVar(&o.Light, "light", false, "only control planes, without nodes and without root")
	fs.IntVar(&o.FakeNodes, "fake-nodes", 0, "simulated nodes of each cluster")
	fs.StringVar(&o.Kubernetes, "kubernetes", "", "version of Kubernetes: 1.37 (the default), 1.34, 1.33 or 1.32; each is built the first time, which takes minutes")
	fs.BoolVar(&o.CheckKubelets, "check-kubelets", false, "API servers check the certificates of kubelets (--kubelet-certificate-authority)")
	_, err := c.parse(fs, 0, 0)
	o.Name, o.CIDRs, o.LAN = c.name, lab.CIDRs(*cidrs), lab.LAN(*lan)
	o.Families = lab.Families(*families)
	o.CNI, o.IPAM, o.Proxy = lab.CNI(*cni), lab.IPAM(*ipam), lab.Proxy(*proxy)
	return o, err
}

func (c *command) up(ctx context.Context) error {
	o, err := c.upOptions()
	if err != nil {
		return err
	}
	say := reporter(os.Stderr)
	if !o.Light {
		if why := lab.WhyPackages(); why != "" {
			say(why)
		}
		if err := lab.InstallPackages(ctx, say); err != nil {
			return err
		}
	}
	l, err := lab.Up(ctx, o, say)
	if err != nil {
		return err
	}
	say("ready")
	for _, cl := range l.Plan().Clusters {
		k, err := l.Kubeconfig(cl.Name)
		if err != nil {
			return err
		}
		fmt.Fprintf(c.out, "export KUBECONFIG=%s   # %s\n", k, cl.Name)
	}
	return nil
}

func (c *command) down(ctx context.Context) error {
	fs := flags("down")
	all := fs.Bool("all", false, "remove all labs of this machine")
	if _, err := c.parse(fs, 0, 0); err != nil {
		return err
	}
	names := []string{c.name}
	if *all {
		var err error
		if names, err = lab.Names(); err != nil {
			return err
		}
	}
	say := reporter(os.Stderr)
	for _, n := range names {
		if err := lab.Down(ctx, n); err != nil {
			return fmt.Errorf("take lab %s down: %w", n, err)
		}
		say("lab " + n + " is down")
	}
	return nil
}

func (c *command) status(ctx context.Context) error {
	fs := flags("status")
	output := fs.String("o", "", "json, or nothing for people")
	if _, err := c.parse(fs, 0, 0); err != nil {
		return err
	}
	s, err := lab.ReadStatus(ctx, c.name)
	if err != nil {
		return err
	}
	if *output == "json" {
		e := json.NewEncoder(c.out)
		e.SetIndent("", "  ")
		return e.Encode(s)
	}
	printStatus(c.out, s)
	return nil
}

func printStatus(out io.Writer, s lab.Status) {
	fmt.Fprintf(out, "lab %s is %s\n", s.Name, s.State)
	if s.Error != "" {
		fmt.Fprintln(out, s.Error)
	}
	w := tabwriter.NewWriter(out, 0, 4, 2, ' ', 0)
	word := func(b bool, yes, no string) string {
		if b {
			return yes
		}
		return no
	}
	for _, cl := range s.Clusters {
		fmt.Fprintf(w, "\n%s\t%s\t%s\tpods %s\tservices %s\n", cl.Name, word(cl.Ready, "ready", "NOT READY"), cl.Server, cl.PodCIDR, cl.ServiceCIDR)
		if t := troubles(cl.Components); t != "" {
			fmt.Fprintf(w, "  %s\n", t)
		}
		for _, n := range cl.Nodes {
			state := word(n.Ready, "ready", "not ready")
			if n.PID == 0 {
				state = "stopped"
			}
			fmt.Fprintf(w, "  %s\t%s\t%s\tpid %d\t%s\n", n.Name, state, n.Address, n.PID, troubles(n.Components))
		}
	}
	for _, h := range s.Hosts {
		fmt.Fprintf(w, "\nhost %s\t%s\t%s\tpid %d", h.Name, h.Address, h.Address6, h.PID)
	}
	if len(s.Hosts) > 0 {
		fmt.Fprintln(w)
	}
	_ = w.Flush() // to the same out, which may be gone
	for _, p := range s.Faults.Pairs {
		fmt.Fprintln(out, "fault:", p)
	}
	for _, n := range s.Faults.NAT {
		fmt.Fprintln(out, "fault:", n, "is behind NAT")
	}
}

// troubles lists the components that do not run or did not always.
func troubles(components []lab.Process) string {
	var t []string
	for _, p := range components {
		if p.Restarts > 0 {
			t = append(t, fmt.Sprintf("%s restarted %d times (%s)", p.Name, p.Restarts, p.Last))
		} else if !p.Running {
			t = append(t, p.Name+" waits")
		}
	}
	return strings.Join(t, ", ")
}

func (c *command) open(ctx context.Context) (*lab.Lab, error) { return lab.Open(ctx, c.name) }

func (c *command) kubeconfig(ctx context.Context) error {
	fs := flags("kubeconfig")
	internal := fs.Bool("internal", false, "for use inside the lab's network")
	args, err := c.parse(fs, 1, 1)
	if err != nil {
		return err
	}
	l, err := c.open(ctx)
	if err != nil {
		return err
	}
	get := l.Kubeconfig
	if *internal {
		get = l.InternalKubeconfig
	}
	k, err := get(args[0])
	if err != nil {
		return err
	}
	fmt.Fprintln(c.out, k)
	return nil
}

func (c *command) kubectl(ctx context.Context) error {
	if len(c.args) < 1 {
		return errors.New("kubectl: name a cluster")
	}
	l, err := c.open(ctx)
	if err != nil {
		return err
	}
	k, err := l.Kubeconfig(c.args[0])
	if err != nil {
		return err
	}
	path, err := lab.BinaryPath(ctx, "kubectl", reporter(os.Stderr))
	if err != nil {
		return err
	}
	return syscall.Exec(path, append([]string{path, "--kubeconfig=" + k}, c.args[1:]...), os.Environ())
}

func (c *command) exec(ctx context.Context) error {
	fs := flags("exec")
	inside := fs.Bool("inside", false, "also in the node's file system and process namespace")
	if err := fs.Parse(c.args); err != nil {
		return err
	}
	args := fs.Args()
	if len(args) > 1 && args[1] == "--" {
		args = append(args[:1:1], args[2:]...)
	}
	if len(args) < 2 {
		return errors.New("exec: want NODE -- CMD…")
	}
	l, err := c.open(ctx)
	if err != nil {
		return err
	}
	cmd, err := l.Exec(ctx, args[0], *inside, args[1:]...)
	if err != nil {
		return err
	}
	// Become it: signals, terminal and exit code are its own then.
	return syscall.Exec(cmd.Path, cmd.Args, cmd.Env)
}

func (c *command) load(ctx context.Context) error {
	fs := flags("load")
	to := fs.String("to", "", "only this node or cluster")
	args, err := c.parse(fs, 1, 1)
	if err != nil {
		return err
	}
	l, err := c.open(ctx)
	if err != nil {
		return err
	}
	var targets []string
	if *to != "" {
		targets = strings.Split(*to, ",")
	}
	nodes, err := l.Load(ctx, args[0], targets...)
	if err != nil {
		return err
	}
	fmt.Fprintln(c.out, "loaded into", strings.Join(nodes, " "))
	return nil
}

func (c *command) build(ctx context.Context) error {
	if _, err := c.parse(flags("build"), 0, 0); err != nil {
		return err
	}
	say := reporter(os.Stderr)
	bins, err := lab.BuildAll(ctx, say)
	if err != nil {
		return err
	}
	for name, dir := range bins {
		fmt.Fprintf(c.out, "%s\t%s\n", name, dir)
	}
	return nil
}

func (c *command) bin(ctx context.Context) error {
	fs := flags("bin")
	kubernetes := fs.String("kubernetes", "", "version of Kubernetes, as of up")
	args, err := c.parse(fs, 1, 1)
	if err != nil {
		return err
	}
	path, err := lab.BinaryPathOf(ctx, *kubernetes, args[0], reporter(os.Stderr))
	if err != nil {
		return err
	}
	fmt.Fprintln(c.out, path)
	return nil
}
