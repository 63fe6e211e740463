package control

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/integration/eventually"
	"github.com/entente-dev/entente/integration/only"
	"github.com/entente-dev/entente/integration/puppet"
	"github.com/entente-dev/entente/peering"
)

const (
	attackPods = 20
	// honestPods fit the fake nodes.
	honestPods = 60
	statusText = 200 << 10
	// readStatusText is as long as is read.
	readStatusText = 60 << 10
	// compacted is after how long etcd grows no more: the API server compacts each five
	// minutes what is older than that.
	compacted = 15 * time.Minute
)

// What docs/limits.md says that peers can have in a cluster and make it write: as
// consumers, as providers and by what they say of themselves.
const (
	limitBytes      = (256 + 384) << 20
	limitWriteBurst = (400 + 192 + 48) << 20
	limitWriteRate  = (512 + 256 + 256) << 10
)

// TestThreePeersThatWriteWithoutEndLeaveTheClusterWritable has three peers make a
// cluster write as much as they can, as consumers, as providers and by what they say
// of themselves. What etcd says of its size never exceeds what the budgets allow and four
// fifths of its default quota, it grows no more after a quarter of an hour, and another
// peer's pods start meanwhile. ENTENTE_ATTACK is for how long, by default for 20 s.
func TestThreePeersThatWriteWithoutEndLeaveTheClusterWritable(t *testing.T) {
	if !only.InMatrix() && os.Getenv("ENTENTE_ATTACK") == "" {
		t.Skip("it takes five minutes: `make matrix` runs it (ENTENTE_MATRIX=1)")
	}
	_, abroad := agents(t)
	lasts := 20 * time.Second
	if text := os.Getenv("ENTENTE_ATTACK"); text != "" {
		var err error
		if lasts, err = time.ParseDuration(text); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	etcd := etcdOf(t, abroad)
	before := etcd.look(t)
	if quota := before["etcd_server_quota_backend_bytes"]; quota != 2<<30 {
		t.Fatalf("etcd's quota is %.0f bytes, not its default", quota)
	}
	offer(t, abroad, "cpu=20", "memory=40Gi", "pods=300")

	honest := playing(t, abroad, 1, nil)
	alone := startPods(ctx, t, abroad, honest, "alone")

	texts := &puppet.Pods{Status: largeStatus}
	resources, err := peering.ParseResources(map[string]string{"cpu": "100", "memory": "100Gi", "pods": "100"})
	if err != nil {
		t.Fatal(err)
	}
	attackers := []*puppet.Peer{
		playing(t, abroad, 2, nil), playing(t, abroad, 3, nil),
		playing(t, abroad, 4, &puppet.Provider{Offer: peering.Offer{Available: true, Resources: resources, Duration: 24 * time.Hour}, Pods: texts}),
	}
	borrow(ctx, t, abroad, attackers[2].Name)
	texts.Flood.Store(true)
	var floods []*mirrorFlood
	for i, p := range attackers {
		space := fmt.Sprint("attack-", i)
		f := grantTo(ctx, t, p, attackPods)
		f.space(ctx, t, space)
		floods = append(floods, f)
		go sendWithoutEnd(ctx, p)
		go f.rewrite(space)
		go f.churn(space)
	}
	sent := func() (n int64) {
		for _, f := range floods {
			n += f.sent.Load()
		}
		return n
	}

	begin, last := time.Now(), etcd.look(t)
	base, plateau := last[etcdSize], 0.0
	for ctx.Err() == nil && time.Since(begin) < lasts {
		time.Sleep(min(30*time.Second, lasts/2))
		now := etcd.look(t)
		t.Logf("after %s: etcd has %.0f MiB, %.0f of them in use, %+.0f MiB; %d applies and deletes and %d statuses were sent",
			time.Since(begin).Round(time.Second), now[etcdSize]/(1<<20), now[etcdInUse]/(1<<20), (now[etcdSize]-last[etcdSize])/(1<<20), sent(), texts.Said.Load())
		last = now
		if plateau == 0 && time.Since(begin) >= compacted {
			plateau = now[etcdSize]
		}
	}
	// From then on etcd uses again what compactions freed.
	if plateau > 0 && last[etcdSize] > plateau*1.1 {
		t.Errorf("etcd had %.0f MiB after %s, and has %.0f MiB now", plateau/(1<<20), compacted, last[etcdSize]/(1<<20))
	}
	// It needs more room than the written data: for keys, and for pages that are not full.
	took := time.Since(begin)
	most := limitBytes + (limitWriteBurst+limitWriteRate*took.Seconds())*1.2 + 64<<20
	if grown := last[etcdSize] - base; grown > most {
		t.Errorf("etcd grew by %.0f MiB in %s; the budgets allow %.0f", grown/(1<<20), took, most/(1<<20))
	}
	beside := startPods(ctx, t, abroad, honest, "beside")
	t.Logf("the honest peer started %.0f pods a second alone, and %.0f beside three attackers", alone, beside)
	if sent() < 1000 || texts.Said.Load() < 1000 {
		t.Errorf("the attack sent too little: %d and %d messages", sent(), texts.Said.Load())
	}
	last = etcd.look(t)
	if last[etcdSize] > last["etcd_server_quota_backend_bytes"]*4/5 {
		t.Errorf("etcd has %.0f MiB", last[etcdSize]/(1<<20))
	}
	// What etcd refuses for want of room it refuses to all.
	written := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: "written-after-all"}}
	if err := errors.Join(abroad.client.Create(ctx, written), abroad.client.Delete(ctx, written)); err != nil {
		t.Errorf("the cluster cannot be written: %v", err)
	}
}

// grantTo makes a contract with a peer and opens its stream.
func grantTo(ctx context.Context, t *testing.T, p *puppet.Peer, pods int) *mirrorFlood {
	t.Helper()
	terms, err := p.Contract(ctx, peering.Ask{}, "cpu=1", "memory=1Gi", fmt.Sprint("pods=", pods))
	if err != nil {
		t.Fatal(err)
	}
	return newMirrorFlood(ctx, t, p, terms.ContractID)
}

// borrow has a cluster ask a provider for a node, and puts pods there.
func borrow(ctx context.Context, t *testing.T, c *cluster, provider string) {
	t.Helper()
	node := "flood" + v1alpha1.VirtualNodeSuffix
	request := requestOf("flood", provider, func(s *v1alpha1.PeeringRequest) {
		s.Spec.Network, s.Spec.Resources = v1alpha1.NetworkNone, amounts("cpu=1", "memory=1Gi", fmt.Sprint("pods=", attackPods))
	})
	if err := c.client.Create(ctx, request); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { remove(t, c, request) })
	if err := eventually.Is(ctx, later, "the node of the provider that attacks", func(ctx context.Context) error { return nodeReady(ctx, c, node) }); err != nil {
		t.Fatal(err)
	}
	namespace := newNamespace(t, c, "borrows")
	asked := offloadingOf(namespace, nil)
	if err := c.client.Create(ctx, asked); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx := context.WithoutCancel(t.Context())
		if err := c.client.DeleteAllOf(ctx, &corev1.Pod{}, ctrlclient.InNamespace(namespace), ctrlclient.GracePeriodSeconds(0)); err != nil {
			t.Error(err)
		}
		remove(t, c, asked)
	})
	for i := range attackPods {
		p := remotePod(namespace, fmt.Sprint("lied-of-", i), func(p *corev1.Pod) { p.Spec.NodeName = node })
		if err := c.client.Create(ctx, p); err != nil {
			t.Fatal(err)
		}
	}
}

// largeStatus is a status of a pod that runs, and that never stays the same: larger than
// what is read of one, or as large.
func largeStatus(ref peering.ObjectRef, n int) peering.PodStatus {
	length := statusText
	if n%4 < 2 {
		length = readStatusText
	}
	text := fmt.Sprintf("%08d ", n) + strings.Repeat("long ", length/5)
	ready := []corev1.ConditionStatus{corev1.ConditionTrue, corev1.ConditionFalse}[n%2]
	b, err := json.Marshal(corev1.PodStatus{
		Phase: corev1.PodRunning, PodIP: "10.64.1.7",
		Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: ready, Reason: "Flood"}},
		ContainerStatuses: []corev1.ContainerStatus{{Name: "main", Image: "none.example/none:1", State: corev1.ContainerState{
			Waiting: &corev1.ContainerStateWaiting{Reason: "Flood", Message: text},
		}}},
	})
	if err != nil {
		panic(err) // it is made here
	}
	return peering.PodStatus{Ref: ref, RemoteName: "flood/" + ref.Name, RemoteUID: "r-" + ref.UID, Status: b}
}

// sendWithoutEnd changes the texts of all contracts that a peer can send.
func sendWithoutEnd(ctx context.Context, p *puppet.Peer) {
	for n := 0; ctx.Err() == nil; n++ {
		p.Say(func(s *peering.PeerState) {
			for len(s.Contracts) < peering.MaxContracts {
				s.Contracts = append(s.Contracts, peering.ContractState{ID: fmt.Sprint("c-none-", len(s.Contracts)), Revision: 1, Phase: peering.PhaseActive})
			}
			for i := range s.Contracts {
				s.Contracts[i].Message = fmt.Sprint(n, strings.Repeat(" text", 200))
			}
		})
		select {
		case <-ctx.Done():
		case <-time.After(250 * time.Millisecond):
		}
	}
}

// rewrite changes large ConfigMaps without end.
func (f *mirrorFlood) rewrite(space string) {
	for n := 0; ; n++ {
		text := fmt.Sprintf("%08d", n) + strings.Repeat("x", floodConfigBytes)
		if !f.apply(peering.KindConfigMap, space, fmt.Sprint("config-", n%4), corev1.ConfigMap{Data: map[string]string{"x": text}}) {
			return
		}
	}
}

func attackPod(labels map[string]string) corev1.Pod {
	return corev1.Pod{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: corev1.PodSpec{Containers: []corev1.Container{{
		Name: "main", Image: "none.example/none:1", Resources: corev1.ResourceRequirements{Requests: amounts("cpu=1m", "memory=1Mi")},
	}}}}
}

// churn makes pods, changes them and deletes them without end.
func (f *mirrorFlood) churn(space string) {
	for n := 0; ; n++ {
		for i := range attackPods {
			ref := refOf(peering.KindPod, space, fmt.Sprint("pod-", i))
			ref.UID += fmt.Sprint("-", n/3)
			var ok bool
			if n%3 < 2 {
				ok = f.applyAs(ref, attackPod(map[string]string{"round": fmt.Sprint(n)}))
			} else {
				ok = f.deleteAs(ref)
			}
			if !ok {
				return
			}
		}
	}
}

// startPods has a peer start pods in a cluster, and returns how many a second were
// made. Then it takes them away.
func startPods(ctx context.Context, t *testing.T, c *cluster, p *puppet.Peer, space string) float64 {
	t.Helper()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	f := grantTo(ctx, t, p, honestPods)
	f.space(ctx, t, space)
	begin := time.Now()
	for i := range honestPods {
		if !f.apply(peering.KindPod, space, fmt.Sprint("honest-", i), attackPod(nil)) {
			t.Fatal("the stream ended")
		}
	}
	err := eventually.Is(ctx, 5*time.Minute, "the honest peer's pods", func(ctx context.Context) error {
		pods, err := list[corev1.PodList](ctx, c, managed(), ctrlclient.MatchingLabels{v1alpha1.LabelPeer: string(p.Self())})
		if n := len(pods.Items); err == nil && n < honestPods {
			err = fmt.Errorf("there are %d; %d were taken, %d refused: %v", n, f.taken.Load(), f.refused.Load(), f.why())
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	rate := honestPods / time.Since(begin).Seconds()
	for i := range honestPods {
		f.delete(peering.KindPod, space, fmt.Sprint("honest-", i))
	}
	err = eventually.Is(ctx, 5*time.Minute, "the honest peer's pods to be gone", func(ctx context.Context) error {
		pods, err := list[v1alpha1.OffloadedPodList](ctx, c, ctrlclient.MatchingLabels{v1alpha1.LabelPeer: string(p.Self())})
		if n := len(pods.Items); err == nil && n > 0 {
			err = fmt.Errorf("there are %d", n)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return rate
}

// What etcd says of its size: of the file, and of what is used in it.
const (
	etcdSize  = "etcd_mvcc_db_total_size_in_bytes"
	etcdInUse = "etcd_mvcc_db_total_size_in_use_in_bytes"
)

// etcdMetrics asks a cluster's etcd.
type etcdMetrics struct {
	client *http.Client
	url    string
}

// etcdOf finds the etcd of a cluster by the command line of its API server, which is
// on this machine.
func etcdOf(t *testing.T, c *cluster) *etcdMetrics {
	t.Helper()
	_, port, _ := strings.Cut(strings.TrimPrefix(c.config.Host, "https://"), ":")
	files, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		b, err := os.ReadFile(file)
		if err != nil {
			continue // it ended
		}
		flags := map[string]string{}
		for arg := range strings.SplitSeq(string(b), "\x00") {
			if k, v, ok := strings.Cut(arg, "="); ok {
				flags[k] = v
			}
		}
		if flags["--secure-port"] != port || flags["--etcd-servers"] == "" {
			continue
		}
		pair, err := tls.LoadX509KeyPair(flags["--etcd-certfile"], flags["--etcd-keyfile"])
		if err != nil {
			t.Fatal(err)
		}
		ca, err := os.ReadFile(flags["--etcd-cafile"])
		if err != nil {
			t.Fatal(err)
		}
		roots := x509.NewCertPool()
		roots.AppendCertsFromPEM(ca)
		return &etcdMetrics{url: flags["--etcd-servers"] + "/metrics", client: &http.Client{Transport: &http.Transport{
			TLSClientConfig: &tls.Config{RootCAs: roots, Certificates: []tls.Certificate{pair}},
		}}}
	}
	t.Fatal("no API server of this run was found")
	return nil
}

func (e *etcdMetrics) look(t *testing.T) map[string]float64 {
	t.Helper()
	resp, err := e.client.Get(e.url)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	out := map[string]float64{}
	lines := bufio.NewScanner(resp.Body)
	for lines.Scan() {
		name, value, _ := strings.Cut(lines.Text(), " ")
		if v, err := strconv.ParseFloat(value, 64); err == nil {
			out[name] = v
		}
	}
	if _, ok := out[etcdSize]; !ok {
		t.Fatalf("etcd does not say its size: %s, %v", resp.Status, lines.Err())
	}
	return out
}
