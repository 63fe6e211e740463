// Command demo shows Entente at work: two real Kubernetes clusters on this machine, with the same addresses, peer and
// run a Deployment together. It shows what it does, checks each step, and leaves nothing behind.
//
//	demo [-lan] [-lab NAME] [-kubernetes VERSION] [-keep] [-o json FILE]
//
// With -lan the clusters are on one LAN and know the secret of a group: they peer by
// themselves.
//
// With KEEP=1 it leaves the clusters up, peered, and suggests what to try. The next run removes them first.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/go-logr/logr"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/entente-dev/entente/integration/e2e"
	"github.com/entente-dev/entente/integration/lab"
	"github.com/entente-dev/entente/integration/show"
)

// all bounds the whole demo: on an empty cache, most of it is spent on building
// Kubernetes.
const all = 40 * time.Minute

func main() {
	// The client library says its own, which is not for the audience.
	log.SetLogger(logr.Discard())
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:])
	stop()
	switch {
	case err == nil, errors.Is(err, flag.ErrHelp):
		return
	case errors.Is(err, errShown):
		os.Exit(1)
	}
	fmt.Fprintln(os.Stderr, "demo:", err)
	os.Exit(1)
}

// errShown is an error that was shown already.
var errShown = errors.New("failed")

// demo is one run.
type demo struct {
	show  *show.Show
	world *e2e.World
	// step is the one that is under way.
	step *show.Step
	logs string
	keep bool

	// lan says that the clusters are on one LAN, secret is what they share then.
	lan    bool
	secret string

	kubernetes string // the version; empty means the newest

	before map[*e2e.Side]e2e.Snapshot
	memory map[string]float64
}

// result is what -o json writes.
type result struct {
	Steps []show.Timed `json:"steps"`
	// MemoryMiB is the resident memory of each part at rest with one peering.
	MemoryMiB map[string]float64 `json:"memoryMiB"`
}

func run(ctx context.Context, args []string) error {
	flags := flag.NewFlagSet("demo", flag.ContinueOnError)
	name := flags.String("lab", or(os.Getenv("ENTENTE_LAB_NAME"), "demo"), "name of the lab to make; one of that name is removed first")
	onLAN := flags.Bool("lan", false, "two clusters on one LAN, which peer by themselves")
	kubernetes := flags.String("kubernetes", "", "version of Kubernetes, as of lab up: 1.37, 1.34, 1.33 or 1.32")
	keep := flags.Bool("keep", os.Getenv("KEEP") != "" && os.Getenv("KEEP") != "0", "leave everything running (KEEP=1); the next run removes it first, unless it has another -lab")
	output := flags.String("o", "", "json: write the steps' times and the memory used to the FILE that follows the flags")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if *output != "" && (*output != "json" || flags.NArg() != 1) || *output == "" && flags.NArg() > 0 {
		return errors.New("usage: demo [-lan] [-lab NAME] [-keep] [-o json FILE]")
	}
	ctx, cancel := context.WithTimeoutCause(ctx, all, fmt.Errorf("the demo takes longer than %s", all))
	defer cancel()
	d := &demo{show: show.New(os.Stdout), keep: *keep, lan: *onLAN, kubernetes: *kubernetes, memory: map[string]float64{}}
	err := d.play(ctx, *name)
	if err != nil {
		d.failed(ctx, *name, err)
		return errShown
	}
	d.show.Chapter("How long it took", "")
	d.show.Table()
	if len(d.memory) > 0 {
		d.show.Say(memoryText(d.memory))
	}
	if *output == "json" {
		b, err := json.MarshalIndent(result{Steps: d.show.Steps(), MemoryMiB: d.memory}, "", "  ")
		if err != nil {
			return err
		}
		if err := os.WriteFile(flags.Arg(0), append(b, '\n'), 0o644); err != nil {
			return err
		}
	}
	if d.keep {
		return d.hints(ctx)
	}
	if d.lan {
		d.show.Good("Two clusters found each other, proved that they belong together, and ran one application, without a command. Nothing is left behind.")
		return nil
	}
	d.show.Good("Two clusters that share nothing but a contract ran one application together. Nothing of it is left.")
	return nil
}

// failed says why, keeps the logs, and takes the lab away unless it is to be
// kept.
func (d *demo) failed(ctx context.Context, name string, err error) {
	if cause := context.Cause(ctx); cause != nil && !errors.Is(cause, context.Canceled) {
		err = fmt.Errorf("%w (%w)", err, cause)
	}
	d.show.Fail(err.Error())
	// What follows has to be done also when the demo was interrupted.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 3*time.Minute)
	defer cancel()
	if d.world != nil {
		if err := d.world.Dump(ctx, d.logs); err != nil {
			d.show.Say("not all logs could be kept: " + err.Error())
		}
		d.show.Say("Logs are in " + d.logs)
	}
	if d.keep {
		d.show.Say("The lab is left as it is: bin/lab --name " + name + " status")
		return
	}
	if err := lab.Down(ctx, name); err != nil {
		d.show.Say("the lab could not be taken down: " + err.Error())
	}
}

// act is a part of the demo: a step, and the chapter that begins with it, if one does.
type act struct {
	chapter, about, title string
	do                    func(context.Context) error
}

// acts are two clusters that their administrators have peer.
func (d *demo) acts(name string) []act {
	return []act{
		{
			"Two clusters", "Two people, two real Kubernetes clusters on this machine, with an internet of their own in between. " +
				"Both were set up by the book, so their pods and services have the same addresses.",
			"Bring up two clusters", func(ctx context.Context) error { return d.bringUp(ctx, name) },
		},
		{"", "", "Load the image onto their nodes", d.load},
		{
			"Entente", "One chart for each cluster: an agent under Pod Security \"restricted\", and the fabric with NET_ADMIN and nothing more.",
			"Install the chart with helm in both", d.install,
		},
		{
			"Trust", "milan makes a one-time token; rome redeems it. From then on each knows the other's key. Nothing is shared yet.",
			"Join by token", d.join,
		},
		{
			"Contract", "rome asks, milan offers what its policy allows, both sign. The contract becomes a node in rome, a quota in milan and a tunnel between the two.",
			"Peer", d.peer,
		},
		{"", "", "See what kubectl sees", d.look},
		{
			"One application in two clusters", "A namespace opts in. Then a plain Deployment, a plain Service, and Kubernetes' own scheduler.",
			"Offload a namespace", d.offload,
		},
		{"", "", "Run a Deployment on both sides", d.deploy},
		{"", "", "Call by Service name, from both sides", d.call},
		{"", "", "Read logs and run a command in a remote pod", d.remote},
		{"", "", "Ask Entente how things are", d.info},
		{
			"What the internet sees", "Every packet between the two clusters, recorded on the way, while pods talk and kubectl reads logs.",
			"Record packets", d.record,
		},
	}
}

// ends are the acts at the end.
func (d *demo) ends() []act {
	return []act{
		{
			"The end", "Either side can end it at any time. First the contract: what runs abroad is drained and comes home. Then the trust.",
			"Unpeer", d.unpeer,
		},
		{"", "", "Delete the application", d.remove},
		{"", "", "Uninstall with helm", d.uninstall},
		{"", "", "Prove that nothing is left", d.nothingLeft},
		{"", "", "Take the clusters away", d.takeDown},
	}
}

// play does it all.
func (d *demo) play(ctx context.Context, name string) error {
	acts, ends := d.acts(name), d.ends()
	if d.lan {
		acts, ends = d.lanActs(name), d.lanEnds()
	}
	if !d.keep {
		acts = append(acts, ends...)
	}
	for _, act := range acts {
		if act.chapter != "" {
			d.show.Chapter(act.chapter, act.about)
		}
		err := d.show.Step(act.title, func(t *show.Step) error {
			d.step = t
			return act.do(ctx)
		})
		if err != nil {
			return fmt.Errorf("%s: %w", act.title, err)
		}
	}
	return nil
}

func or(a, b string) string {
	if a != "" {
		return a
	}
	return b
}

// logsIn is where the logs of a demo that failed go.
func logsIn(root string) string {
	return filepath.Join(root, ".build/logs", "demo-"+time.Now().UTC().Format("20060102-150405"))
}
