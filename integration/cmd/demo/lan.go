package main

import (
	"context"
	"crypto/rand"
	"fmt"
	"strings"
	"time"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/integration/e2e"
	"github.com/entente-dev/entente/integration/show"
)

// group is the name of the group that both clusters of the demo on a LAN are in.
const group = "office"

// lanHints is how two clusters on one LAN found each other, to try.
const lanHints = `
  # how they found each other, and why they trust each other
  bin/entente discover
  kubectl get nodediscoveries -o wide
  kubectl get pp -o wide
  kubectl describe pp entente-automatic
`

// lanActs are two clusters on one LAN that peer by themselves.
func (d *demo) lanActs(name string) []act {
	return []act{
		{
			"Two clusters on one LAN", "Two real Kubernetes clusters on this machine whose nodes are plugged into one switch, as in an office. " +
				"Both were set up by the book, so their pods and services have the same addresses.",
			"Bring up two clusters", func(ctx context.Context) error { return d.bringUp(ctx, name) },
		},
		{"", "", "Load the image onto their nodes", d.load},
		{
			"The first", "Its chart says: look at the LAN, and peer with clusters that know this secret. There are none yet.",
			"Install the chart with helm in rome", d.installFirst,
		},
		{
			"The second", "The same values, the same secret. It needs no further command.",
			"Install the chart with helm in milan, and watch", d.installSecond,
		},
		{"", "", "See what kubectl sees", d.lookBoth},
		{
			"One application in two clusters", "A plain Deployment, a plain Service, and Kubernetes' own scheduler. The policy offloads the namespace.",
			"Run a Deployment on both sides", d.deploy,
		},
		{"", "", "Call by Service name, from both sides", d.call},
	}
}

// lanEnds are the acts at the end.
func (d *demo) lanEnds() []act {
	return []act{
		{"The end", "The application goes first. Then a cluster that leaves says goodbye, and the peering ends on both sides.", "Delete the application", d.remove},
		{"", "", "Uninstall with helm", d.uninstall},
		{"", "", "Prove that nothing is left", d.nothingLeft},
		{"", "", "Take the clusters away", d.takeDown},
	}
}

// installIn shows the command that installs the chart in a cluster, but for the
// secret, and starts it.
func (d *demo) installIn(ctx context.Context, s *e2e.Side) <-chan error {
	w := d.world
	line := strings.ReplaceAll(e2e.Line("helm", w.InstallArgs(s)...), w.Root+"/", "")
	d.step.Command("[" + s.Name + "] " + strings.ReplaceAll(line, d.secret, "…"))
	done := make(chan error, 1)
	go func() { done <- w.Install(ctx, s) }()
	return done
}

func (d *demo) installFirst(ctx context.Context) error {
	w := d.world
	d.secret = rand.Text()
	w.Values = append(w.Values,
		"discovery.lan.enabled=true", "discovery.automatic.enabled=true", "discovery.automatic.group.name="+group,
		"discovery.automatic.group.secret="+d.secret, "discovery.automatic.namespaces={"+namespace+"}")
	if _, err := d.kubectl(ctx, w.Home, "create", "namespace", namespace); err != nil {
		return err
	}
	if err := <-d.installIn(ctx, w.Home); err != nil {
		return err
	}
	return w.Home.AgentReady(ctx, e2e.Restarted)
}

func (d *demo) installSecond(ctx context.Context) error {
	w := d.world
	installed := d.installIn(ctx, w.Abroad)
	begin, err := w.Abroad.AgentStarted(ctx, e2e.Scheduled)
	if err != nil {
		return err
	}
	d.step.Fact("%s  the agent of %s runs", show.Seconds(0), w.Abroad.Name)
	err = w.BothWays(ctx, e2e.Scheduled, func(hop string) {
		d.step.Fact("%s  %s", show.Seconds(time.Since(begin)), hop)
	}, e2e.Pair{w.Home, w.Abroad})
	if err != nil {
		return err
	}
	if err := <-installed; err != nil {
		return err
	}
	d.step.Note("Each proved to the other that it knows the secret, without sending it: an attacker learns nothing with which to try guesses.")
	return w.Offloaded(ctx, namespace)
}

func (d *demo) lookBoth(ctx context.Context) error {
	for _, s := range d.world.Sides() {
		for _, what := range []string{"nodes", "foreignclusters", "contracts"} {
			if _, err := d.kubectl(ctx, s, "get", what); err != nil {
				return err
			}
		}
		have, err := s.ContractsWith(ctx, s.Other)
		if err != nil {
			return err
		}
		for _, role := range []v1alpha1.ContractRole{v1alpha1.ContractConsumer, v1alpha1.ContractProvider} {
			c, is := have[role]
			if !is {
				return fmt.Errorf("%s has no contract as %s", s.Name, role)
			}
			sides := s.Other.Name + " lends " + s.Name
			if role == v1alpha1.ContractProvider {
				sides = s.Name + " lends " + s.Other.Name
			}
			d.step.Fact("%s %s CPU and %s memory", sides, c.Spec.Resources.Cpu(), c.Spec.Resources.Memory())
		}
	}
	return nil
}
