package paced

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	api "github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/internal/budget"
	"github.com/entente-dev/entente/internal/podspec"
	"github.com/entente-dev/entente/peering"
)

// clock is a time that a test moves.
type clock struct{ t time.Time }

func (c *clock) now() time.Time        { return c.t }
func testPeer(i int) peering.ClusterID { return peering.ClusterID(fmt.Sprint("peer-", i)) }

// none is for objects that show all that is written.
func none(client.Object) int { return 0 }

func largeConfig(peer peering.ClusterID) client.Object {
	return &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{api.LabelPeer: string(peer)}},
		Data:       map[string]string{"x": strings.Repeat("x", 1<<20)},
	}
}

// ordinaryPod returns a pod such as a Deployment of a web server has, and its record.
func ordinaryPod(t *testing.T, peer peering.ClusterID) (*api.OffloadedPod, *corev1.Pod) {
	t.Helper()
	c := corev1.Container{
		Name: "web", Image: "registry.example/shop/web:1.27.3",
		Ports: []corev1.ContainerPort{{ContainerPort: 8080}},
		Env:   []corev1.EnvVar{{Name: "DATABASE", Value: "postgres.shop:5432"}, {Name: "CACHE", Value: "redis.shop:6379"}, {Name: "LOG_LEVEL", Value: "info"}},
		VolumeMounts: []corev1.VolumeMount{
			{Name: "config", MountPath: "/etc/web"}, {Name: "tmp", MountPath: "/tmp"},
		},
		ReadinessProbe: &corev1.Probe{ProbeHandler: corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: []string{"/bin/ready"}}}},
	}
	in := podspec.Template{Spec: corev1.PodSpec{
		Containers: []corev1.Container{c},
		Volumes: []corev1.Volume{
			{Name: "config", VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: "web"}}}},
			{Name: "tmp", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}},
		},
	}}
	in.Metadata.Labels = map[string]string{"app": "web", "pod-template-hash": "5d69b8c7f9"}
	raw, err := json.Marshal(in)
	if err != nil {
		t.Fatal(err)
	}
	o := &api.OffloadedPod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop-abcdef", Name: "web-5d69b8c7f9-x2x4z", UID: "0f4a3a3e-8d3e-4a53-b5a5-0d8f6f1c9f11", Finalizers: []string{api.Finalizer}},
		Spec: api.OffloadedPodSpec{
			PeerID: string(peer), OriginNamespace: "shop", OriginName: "web-5d69b8c7f9-x2x4z", OriginUID: "3f4a3a3e-8d3e-4a53-b5a5-0d8f6f1c9f11",
			Hash: strings.Repeat("a", 64), Template: runtime.RawExtension{Raw: raw},
		},
	}
	labels := map[string]string{api.LabelManaged: api.Manager, api.LabelPeer: string(peer), api.LabelOriginUID: o.Spec.OriginUID}
	o.Labels = labels
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: o.Namespace, Name: o.Name, Labels: maps.Clone(labels), Annotations: map[string]string{api.AnnotationHash: o.Spec.Hash},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: api.GroupVersion.String(), Kind: "OffloadedPod", Name: o.Name, UID: o.UID, Controller: new(true)}},
		},
		Spec: in.Spec,
	}
	maps.Copy(pod.Labels, in.Metadata.Labels)
	pod.Labels[api.LabelContract] = ""
	return o, pod
}

// Beside as many that take all they can for an hour, in values: so many pods start at
// 100 a second at once, and so many each second from then on.
func TestAPeerStartsPodsBesideOthersThatTakeAll(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		attackers, atOnce int
		steady            float64
		restarted         bool
	}{
		{attackers: 0, atOnce: 4000, steady: 15},
		{attackers: 3, atOnce: 3000, steady: 4},
		{attackers: 3, atOnce: 600, steady: 2, restarted: true},
		{attackers: 16, atOnce: 300, steady: 0.5},
	} {
		t.Run(fmt.Sprintf("%d attackers, restarted %v", tc.attackers, tc.restarted), func(t *testing.T) {
			t.Parallel()
			c := &clock{t: time.Unix(1_000_000, 0)}
			m := newWrites(Config{Writes: Writes(), Unseen: none, Now: c.now})
			ctx, written := t.Context(), 0
			attack := func() {
				for i := range tc.attackers {
					for m.used.Take(c.t, testPeer(i), 1<<20) == 0 {
						written += 1 << 20
					}
				}
			}
			if !tc.restarted {
				for range 3600 {
					attack()
					c.t = c.t.Add(time.Second)
				}
			}
			if most := Writes().Most(time.Hour) + float64(tc.attackers<<20); float64(written) > most {
				t.Errorf("%d MiB were written in an hour, the limit is %v", written>>20, most/(1<<20))
			}
			o, pod := ordinaryPod(t, "honest")
			size := 0
			starts := func() bool {
				// As Reconcile does: made, recorded, recorded again when it runs.
				for _, write := range []func(context.Context) error{
					func(ctx context.Context) error { return m.spend(ctx, o, 1) },
					func(ctx context.Context) error { return m.spend(ctx, pod, 1+budgetPodStarts) },
					func(ctx context.Context) error { return m.spend(ctx, o, 2) },
				} {
					if write(ctx) != nil {
						return false
					}
				}
				return true
			}
			for _, x := range []any{o, o, o, pod, pod, pod, pod, pod} {
				b, err := json.Marshal(x)
				if err != nil {
					t.Fatal(err)
				}
				size += len(b) + budgetWriteBytes
			}
			started := 0
			for starts() {
				started++
				attack()
				c.t = c.t.Add(10 * time.Millisecond)
			}
			later := 0
			for range 3600 {
				c.t = c.t.Add(time.Second)
				attack()
				for starts() {
					later++
				}
			}
			t.Logf("a pod takes %d bytes; beside %d attackers %d start at 100 a second, then %.1f a second", size, tc.attackers, started, float64(later)/3600)
			if started < tc.atOnce || float64(later)/3600 < tc.steady {
				t.Errorf("want %d at once and %.1f a second", tc.atOnce, tc.steady)
			}
		})
	}
}

// What takes a peer's objects away is counted, and does not wait.
func TestBudgetChargesUrgentWrites(t *testing.T) {
	t.Parallel()
	c := &clock{t: time.Unix(1_000_000, 0)}
	m := newWrites(Config{Writes: Writes(), Unseen: none, Now: c.now})
	o := largeConfig("a")
	for range budgetBurst >> 20 {
		if err := m.spend(Urgent(t.Context()), o, 1); err != nil {
			t.Fatal(err)
		}
	}
	if m.spend(t.Context(), o, 1) == nil {
		t.Error("one that deleted all it had may write at once")
	}
	// Deletes of one peer do not make others wait.
	if err := m.spend(t.Context(), largeConfig("b"), 1); err != nil {
		t.Error(err)
	}
}

// metered returns a client with no more than a budget, which one peer has spent, and
// what has that peer try to write a MiB.
func metered(t *testing.T, l budget.Limits) (c Client, write func() error) {
	t.Helper()
	c = New(Config{Writes: l})
	c.writes.used = budget.New[peering.ClusterID](l)
	write = func() error { return c.writes.spend(t.Context(), largeConfig("a"), 1) }
	for write() == nil {
	}
	return c, write
}

// When there is room again, as many waiting writes as it is enough for are tried, in the order in
// which they came; no other comes before them, and another peer does not wait.
func TestWritesWaitForTheBudgetInOrder(t *testing.T) {
	const each = 150 * time.Millisecond // in which a MiB is freed
	mib := float64(1<<20 + budgetWriteBytes + 200)
	l := budget.Limits{Burst: 100 * mib, Rate: mib / each.Seconds(), UserBurst: 10 * mib, UserRate: mib / each.Seconds()}
	for name, waits := range map[string]func(ctx context.Context, c Client, write func() error) error{
		"before it begins": func(ctx context.Context, c Client, write func() error) error {
			done, err := c.Admit(ctx, "a")
			if err != nil {
				return err
			}
			defer done()
			time.Sleep(each / 2) // reading comes first
			return write()
		},
		"once begun": func(ctx context.Context, c Client, write func() error) error { return c.Retry(ctx, "a", write) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c, spend := metered(t, l)
				var mu sync.Mutex
				var order []int
				tried := 0
				const all, later = 15, 20
				came := func(i int) {
					err := waits(t.Context(), c, func() error {
						mu.Lock()
						defer mu.Unlock()
						tried++
						return spend()
					})
					mu.Lock()
					defer mu.Unlock()
					if err != nil {
						t.Errorf("%d: %v", i, err)
					}
					order = append(order, i)
				}
				for i := range later {
					if i == all {
						time.Sleep(each * 5 / 4) // there is room now, and others wait for it
					}
					go came(i)
					synctest.Wait()
				}
				if done, err := c.Admit(t.Context(), "b"); err != nil {
					t.Errorf("another peer: %v", err)
				} else {
					done()
				}
				time.Sleep(patience)
				synctest.Wait()
				if !slices.IsSorted(order) || len(order) != later {
					t.Errorf("they went on in the order %v", order)
				}
				if name == "before it begins" && tried > later+later/10 {
					t.Errorf("%d were tried for %d", tried, later)
				}
			})
		})
	}
}

// One that waits too long is refused, and so are those behind it, each after the same time.
func TestWaitingForTheBudgetIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, _ := metered(t, budget.Limits{Burst: 8 << 20, Rate: 1, UserBurst: 4 << 20, UserRate: 1})
		var work sync.WaitGroup
		for range 5 {
			work.Go(func() {
				began := time.Now()
				_, err := c.Admit(t.Context(), "a")
				if r, ok := errors.AsType[*peering.Refusal](err); !ok || r.Reason != peering.RefusedQuota || !r.Retryable || !strings.Contains(r.Message, "more than its share") {
					t.Errorf("refused with %v", err)
				}
				if took := time.Since(began); took != patience {
					t.Errorf("refused after %s", took)
				}
			})
			time.Sleep(time.Second)
		}
		work.Wait()
		if c.writes.lines.Taken("admit/a") {
			t.Error("a write is still in the queue")
		}
	})
}
