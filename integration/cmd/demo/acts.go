package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/integration/e2e"
	"github.com/entente-dev/entente/integration/lab"
)

const (
	namespace = "shop"
	web       = "web"
	replicas  = 4
	webURL    = "http://" + web + ":8080/name"
)

// run shows a command, and what it prints while it prints it.
func (d *demo) run(ctx context.Context, side *e2e.Side, run func(context.Context, ...string) (string, error), name string, args ...string) (string, error) {
	d.step.Command("[" + side.Name + "] " + e2e.Line(name, args...))
	lines := d.step.Lines()
	out, err := run(e2e.Watching(ctx, lines), args...)
	lines.Flush()
	return out, err
}

func (d *demo) kubectl(ctx context.Context, s *e2e.Side, args ...string) (string, error) {
	return d.run(ctx, s, s.Kubectl, "kubectl", args...)
}

func (d *demo) entente(ctx context.Context, s *e2e.Side, args ...string) (string, error) {
	return d.run(ctx, s, s.Entente, "entente", args...)
}

func (d *demo) bringUp(ctx context.Context, name string) error {
	// What an earlier demo left up would not be a fresh start.
	if status, err := lab.ReadStatus(ctx, name); err == nil && status.State != lab.StateDown {
		d.step.Wait("an earlier lab " + name + " to go")
		if err := lab.Down(ctx, name); err != nil {
			return err
		}
	}
	// What changes on this machine is said in full, before it does, and not only by the
	// line that moves.
	if why := lab.WhyPackages(); why != "" {
		d.step.Note(why)
	}
	var err error
	lans := lab.SeparateLANs
	if d.lan {
		lans = lab.SharedLAN
	}
	if d.world, err = e2e.Up(ctx, e2e.Config{Lab: name, LAN: lans, Kubernetes: d.kubernetes, Waiting: func(what string) { d.step.Wait(what) }}); err != nil {
		return err
	}
	w := d.world
	d.logs = logsIn(w.Root)
	for _, s := range w.Sides() {
		d.step.Fact("%s: %s, node %s at %s, pods %s, services %s", s.Name, s.REST.Host, s.Node(), s.Plan.Control().Address, s.Plan.PodCIDR, s.Plan.ServiceCIDR)
	}
	if w.Home.Plan.PodCIDR != w.Abroad.Plan.PodCIDR {
		return errors.New("the clusters have different pod prefixes")
	}
	d.before, err = w.Snapshots(ctx)
	return err
}

func (d *demo) load(ctx context.Context) error { return d.world.LoadImage(ctx) }

func (d *demo) install(ctx context.Context) error {
	w := d.world
	d.step.Command("[" + w.Home.Name + "] " + strings.ReplaceAll(e2e.Line("helm", w.InstallArgs(w.Home)...), w.Root+"/", ""))
	d.step.Note("and the same in " + w.Abroad.Name)
	if err := w.Each(ctx, w.Install); err != nil {
		return err
	}
	if err := w.Each(ctx, func(ctx context.Context, s *e2e.Side) error { return s.AgentReady(ctx, e2e.Restarted) }); err != nil {
		return err
	}
	_, err := d.kubectl(ctx, w.Home, "get", "pods", "-n", e2e.SystemNamespace)
	return err
}

func (d *demo) join(ctx context.Context) error {
	w := d.world
	d.step.Command("[" + w.Abroad.Name + "] entente token create")
	token, err := w.Abroad.CreateToken(ctx)
	if err != nil {
		return err
	}
	short := token[:min(len(token), 16)] + "…"
	d.step.Output(short)
	d.step.Command("[" + w.Home.Name + "] entente join " + short)
	lines := d.step.Lines()
	_, err = w.Home.Entente(e2e.Watching(ctx, lines), "join", token)
	lines.Flush()
	if err != nil {
		return err
	}
	// A token works once.
	if _, err := w.Home.Entente(ctx, "join", token[:len(token)-4]); err == nil {
		return errors.New("a token that was cut off was taken")
	}
	return w.Join(ctx) // waits until both are connected
}

func (d *demo) peer(ctx context.Context) error {
	w := d.world
	if _, err := d.entente(ctx, w.Home, "peer", "--remote-kubeconfig", w.Abroad.Kubeconfig); err != nil {
		return err
	}
	_, err := w.Peered(ctx, e2e.Restarted)
	return err
}

func (d *demo) look(ctx context.Context) error {
	w := d.world
	node, err := w.Home.VirtualNodeReady(ctx, e2e.Soon)
	if err != nil {
		return err
	}
	out, err := d.kubectl(ctx, w.Home, "get", "nodes")
	if err != nil {
		return err
	}
	if !strings.Contains(out, node.Name) {
		return fmt.Errorf("kubectl get nodes does not show %s", node.Name)
	}
	for _, s := range w.Sides() {
		role := v1alpha1.RoleProvider
		if s == w.Abroad {
			role = v1alpha1.RoleConsumer
		}
		out, err := d.kubectl(ctx, s, "get", "foreignclusters")
		if err != nil {
			return err
		}
		if err := foreignClusterTable(out, s.Other.Name, string(role)); err != nil {
			return err
		}
	}
	contracts, err := w.Home.Contracts(ctx, v1alpha1.ContractConsumer)
	if err != nil {
		return err
	}
	if len(contracts) != 1 {
		return fmt.Errorf("%d contracts, want one", len(contracts))
	}
	for name, amount := range contracts[0].Spec.Resources {
		if has := node.Status.Capacity[name]; has.Cmp(amount) != 0 {
			return fmt.Errorf("the node has %s of %s, the contract %s", has.String(), name, amount.String())
		}
	}
	d.step.Fact("node %s has exactly what contract %s grants: %s CPU, %s memory", node.Name, contracts[0].Name,
		node.Status.Capacity.Cpu(), node.Status.Capacity.Memory())
	out, err = w.Home.WireGuard(ctx, "interfaces")
	if err != nil {
		return err
	}
	devices := strings.Fields(out)
	if len(devices) != 1 {
		return fmt.Errorf("WireGuard devices on node %s are %q, want one", w.Home.Node(), devices)
	}
	d.step.Fact("node %s has one WireGuard device, %s", w.Home.Node(), devices[0])
	return nil
}

// foreignClusterTable checks what kubectl printed: a header and one row.
func foreignClusterTable(out, name, role string) error {
	lines := strings.Split(strings.TrimSpace(out), "\n")
	if len(lines) != 2 || strings.Join(strings.Fields(lines[0]), " ") != "NAME ROLE CONNECTED NETWORK GRANTED USED AGE" {
		return fmt.Errorf("kubectl get foreignclusters printed\n%s", out)
	}
	if row := strings.Fields(lines[1]); row[0] != name || row[1] != role {
		return fmt.Errorf("the foreign cluster is %q, want %s with role %s", lines[1], name, role)
	}
	return nil
}

func (d *demo) offload(ctx context.Context) error {
	w := d.world
	if _, err := d.kubectl(ctx, w.Home, "create", "namespace", namespace); err != nil {
		return err
	}
	if _, err := d.entente(ctx, w.Home, "offload", "namespace", namespace); err != nil {
		return err
	}
	return w.Offloaded(ctx, namespace)
}

func (d *demo) deploy(ctx context.Context) error {
	w := d.world
	deployment, service := e2e.Web(namespace, web, replicas, e2e.Everywhere)
	if err := w.Home.Create(ctx, deployment, service); err != nil {
		return err
	}
	d.step.Note(fmt.Sprintf("Deployment %s with %d replicas, spread evenly over nodes; Service %s", web, replicas, web))
	pods, err := w.Home.PodsReady(ctx, e2e.Scheduled, namespace, deployment.Labels, replicas)
	if err != nil {
		return err
	}
	if _, err := d.kubectl(ctx, w.Home, "get", "pods", "-n", namespace, "-o", "wide"); err != nil {
		return err
	}
	home, away := e2e.Split(pods)
	if len(home) == 0 || len(away) == 0 {
		return fmt.Errorf("%d pods run at home and %d abroad, want some on both sides", len(home), len(away))
	}
	remote, err := w.RemoteNamespace(ctx, namespace)
	if err != nil {
		return err
	}
	if _, err := d.kubectl(ctx, w.Abroad, "get", "pods", "-n", remote, "-o", "wide"); err != nil {
		return err
	}
	for i := range away {
		twin, err := w.Abroad.Twin(ctx, &away[i])
		if err != nil {
			return err
		}
		d.step.Fact("%s is %s in %s and %s in %s", away[i].Name, away[i].Status.PodIP, w.Home.Name, twin.Status.PodIP, w.Abroad.Name)
	}
	return nil
}

// pods returns the web pods at home and abroad.
func (d *demo) pods(ctx context.Context) (home, away []corev1.Pod, err error) {
	pods, err := d.world.Home.PodsReady(ctx, e2e.Scheduled, namespace, map[string]string{"app": web}, replicas)
	if err != nil {
		return nil, nil, err
	}
	home, away = e2e.Split(pods)
	if len(home) == 0 || len(away) == 0 {
		return nil, nil, fmt.Errorf("%d pods run at home and %d abroad", len(home), len(away))
	}
	return home, away, nil
}

func (d *demo) call(ctx context.Context) error {
	w := d.world
	home, away, err := d.pods(ctx)
	if err != nil {
		return err
	}
	pods := append(append([]corev1.Pod(nil), home...), away...)
	for _, from := range []struct {
		pod   corev1.Pod
		where string
	}{{home[0], "a pod in " + w.Home.Name}, {away[0], "a pod in " + w.Abroad.Name}} {
		d.step.Note("from " + from.where)
		if err := w.Home.ReachesAll(ctx, e2e.Soon, namespace, from.pod.Name, webURL, pods); err != nil {
			return err
		}
		if _, err := d.kubectl(ctx, w.Home, "exec", "-n", namespace, from.pod.Name, "--", "/tool", "curl", "-n", "6", webURL); err != nil {
			return err
		}
		d.step.Fact("%s reaches all %d replicas by the name %s", from.where, len(pods), web)
	}
	return nil
}

func (d *demo) remote(ctx context.Context) error {
	_, away, err := d.pods(ctx)
	if err != nil {
		return err
	}
	pod := away[0].Name
	out, err := d.kubectl(ctx, d.world.Home, "logs", "-n", namespace, pod, "--tail=3")
	if err != nil {
		return err
	}
	if !strings.Contains(out, "GET /name") {
		return errors.New("the log does not show the calls that were just made")
	}
	out, err = d.kubectl(ctx, d.world.Home, "exec", "-n", namespace, pod, "--", "/tool", "dig", web)
	if err != nil {
		return err
	}
	if strings.TrimSpace(out) == "" {
		return errors.New("the name has no address")
	}
	return nil
}

func (d *demo) info(ctx context.Context) error {
	w := d.world
	if _, err := d.entente(ctx, w.Home, "info"); err != nil {
		return err
	}
	out, err := d.entente(ctx, w.Home, "info", "peer", w.Abroad.Name)
	if err != nil {
		return err
	}
	if !strings.Contains(out, w.Abroad.Name) {
		return errors.New("info peer does not name the peer")
	}
	for _, s := range w.Sides() {
		for _, part := range []string{e2e.PartAgent, e2e.PartNode, e2e.PartWireGuard} {
			bytes, err := s.Memory(ctx, part)
			if err != nil {
				return err
			}
			d.memory[s.Name+" "+part] = float64(bytes>>10) / 1024
		}
	}
	return nil
}

// memoryText is the memory of each part, for people.
func memoryText(memory map[string]float64) string {
	var b strings.Builder
	b.WriteString("\nResident memory with one peering:")
	for _, part := range []string{e2e.PartAgent, e2e.PartNode, e2e.PartWireGuard} {
		fmt.Fprintf(&b, "\n  entented %-10s", part)
		for _, name := range slices.Sorted(maps.Keys(memory)) {
			if side, p, _ := strings.Cut(name, " "); p == part {
				fmt.Fprintf(&b, "  %s %.0f MiB", side, memory[name])
			}
		}
	}
	return b.String()
}

func (d *demo) record(ctx context.Context) error {
	w := d.world
	home, away, err := d.pods(ctx)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Join(w.Root, ".build/logs"), 0o755); err != nil {
		return err
	}
	file := filepath.Join(w.Root, ".build/logs", "demo.pcap")
	d.step.Command("lab capture " + w.Home.Plan.Name + " " + w.Abroad.Plan.Name + " .build/logs/demo.pcap")
	err = w.Record(ctx, file, func(ctx context.Context) error {
		for _, pod := range []string{home[0].Name, away[0].Name} {
			if _, err := w.Home.Answers(ctx, namespace, pod, 20, webURL); err != nil {
				return err
			}
		}
		if _, err := w.Home.Kubectl(ctx, "logs", "-n", namespace, away[0].Name); err != nil {
			return err
		}
		time.Sleep(5 * time.Second) // the session says something too
		return nil
	})
	if err != nil {
		return err
	}
	traffic, err := e2e.ReadTraffic(file, web+"-", "GET /name", "HTTP/1.1")
	if err != nil {
		return err
	}
	if traffic.WireGuard == 0 || traffic.Records == 0 || traffic.Others > 0 {
		return fmt.Errorf("between the clusters passed %s", traffic)
	}
	d.step.Fact("%s; nothing else, and no word from the pods' traffic", traffic)
	return nil
}

func (d *demo) unpeer(ctx context.Context) error {
	w := d.world
	// With --forget alone nothing is drained: it ends at once.
	if _, err := d.entente(ctx, w.Home, "unpeer", w.Abroad.Name, "--yes"); err != nil {
		return err
	}
	pods, err := w.Home.PodsReady(ctx, e2e.Scheduled, namespace, map[string]string{"app": web}, replicas)
	if err != nil {
		return err
	}
	if _, away := e2e.Split(pods); len(away) > 0 {
		return fmt.Errorf("%d pods are still on the virtual node", len(away))
	}
	if _, err := d.kubectl(ctx, w.Home, "get", "pods", "-n", namespace, "-o", "wide"); err != nil {
		return err
	}
	d.step.Fact("all %d replicas run at home", replicas)
	if _, err := d.entente(ctx, w.Home, "unpeer", "--remote-kubeconfig", w.Abroad.Kubeconfig, "--forget", "--yes"); err != nil {
		return err
	}
	return w.Each(ctx, func(ctx context.Context, s *e2e.Side) error { return s.Unpeered(ctx, e2e.Scheduled) })
}

func (d *demo) remove(ctx context.Context) error {
	d.step.Command("[" + d.world.Home.Name + "] kubectl delete namespace " + namespace)
	return d.world.DeleteNamespace(ctx, namespace)
}

func (d *demo) uninstall(ctx context.Context) error {
	w := d.world
	d.step.Command("helm uninstall " + e2e.Release + " --namespace " + e2e.SystemNamespace)
	return w.Each(ctx, w.Uninstall)
}

func (d *demo) nothingLeft(ctx context.Context) error {
	if err := d.world.NothingLeft(ctx, d.before); err != nil {
		return err
	}
	for _, s := range d.world.Sides() {
		d.step.Fact("%s is as it was before: %s", s.Name, d.before[s].Count())
	}
	return nil
}

func (d *demo) takeDown(ctx context.Context) error { return d.world.Down(ctx) }

// hints says what can be tried now.
func (d *demo) hints(ctx context.Context) error {
	w := d.world
	_, away, err := d.pods(ctx)
	if err != nil {
		return err
	}
	wg, err := w.Home.WireGuardCommand(ctx)
	if err != nil {
		return err
	}
	contracts, err := w.Home.Contracts(ctx, v1alpha1.ContractConsumer)
	if err != nil {
		return err
	}
	if len(contracts) == 0 {
		return errors.New("there is no contract")
	}
	name := w.Config.Lab
	d.show.Chapter("It is all still there", "Both clusters run, peered, with the application in them. Try:")
	found := ""
	if d.lan {
		found = lanHints
	}
	d.show.Say(strings.NewReplacer(
		"FOUND", found, "ROME", w.Home.Kubeconfig, "MILAN", w.Abroad.Kubeconfig, "REMOTE", away[0].Name, "LAB", "bin/lab --name "+name, "NODE", w.Home.Node(),
		"A-B", w.Home.Plan.Name+" "+w.Abroad.Plan.Name, "NS", namespace, "PEER", w.Abroad.Name, "WG", e2e.Line(wg[0], wg[1:]...),
		"SYSTEM", e2e.SystemNamespace, "CONTRACT", contracts[0].Name,
	).Replace(`
  alias kubectl="$(LAB bin kubectl)"
  export KUBECONFIG=ROME    # milan's is MILAN

  # what Kubernetes sees
  kubectl get nodes,foreignclusters,contracts
  kubectl -n NS get pods -o wide
  kubectl -n NS logs REMOTE
  kubectl -n NS exec REMOTE -- /tool curl -n 8 http://web:8080/name
FOUND
  # what Entente says
  bin/entente info
  bin/entente info peer PEER -o json
  kubectl get contract CONTRACT -o yaml | bin/entente contract verify -

  # one WireGuard device, nothing else on the way
  LAB exec NODE -- WG
  LAB capture --for 5s A-B /tmp/between.pcap

  # the same through gRPC and REST, as a user with a token
  kubectl create serviceaccount clerk
  kubectl create clusterrolebinding clerk --clusterrole=entente-admin --serviceaccount=default:clerk
  kubectl -n SYSTEM get configmap entente-ca -o 'jsonpath={.data.ca\.crt}' > /tmp/entente-ca.crt
  kubectl -n SYSTEM port-forward service/entente-agent 7444 &
  TOKEN=$(kubectl create token clerk)
  .build/bin/grpcurl -cacert /tmp/entente-ca.crt -H "Authorization: Bearer $TOKEN" localhost:7444 list
  .build/bin/grpcurl -cacert /tmp/entente-ca.crt -H "Authorization: Bearer $TOKEN" localhost:7444 describe entente.v1.AdminService
  curl --cacert /tmp/entente-ca.crt -H "Authorization: Bearer $TOKEN" https://localhost:7444/v1/peers/PEER

  # trouble
  LAB cut A-B;  kubectl get nodes -w
  LAB heal

  # the end: what runs abroad comes home, then the trust ends
  bin/entente unpeer PEER
  bin/entente unpeer --remote-kubeconfig MILAN --forget
  LAB down`))
	return nil
}
