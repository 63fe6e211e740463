package ledger

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"

	api "github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/internal/podspec"
)

// ledgerPod is one of few names, so that pods come again under a name.
func ledgerPod(t *rapid.T) *api.OffloadedPod {
	name := fmt.Sprint("p-", rapid.IntRange(0, 5).Draw(t, "name"))
	o := &api.OffloadedPod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name},
		Spec: api.OffloadedPodSpec{
			Contract:  rapid.SampledFrom([]string{"c-1", "c-2"}).Draw(t, "contract"),
			OriginUID: name + rapid.SampledFrom([]string{"-a", "-b"}).Draw(t, "uid"),
			Requests:  corev1.ResourceList{corev1.ResourcePods: resource.MustParse("1")},
		},
	}
	for _, r := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory} {
		if n := rapid.Int64Range(0, 3).Draw(t, string(r)); n > 0 {
			o.Spec.Requests[r] = *resource.NewMilliQuantity(n*250, resource.DecimalSI)
		}
	}
	if rapid.Bool().Draw(t, "ended") {
		o.Status.Phase = corev1.PodSucceeded
	}
	return o
}

func isLive(o *api.OffloadedPod) bool { return o.Status.Phase != corev1.PodSucceeded }

func keyOf(contract, uid string) string { return contract + "/" + uid }

// TestLedgerIsTheSumOfItsPods compares the ledger's counts with a full count.
func TestLedgerIsTheSumOfItsPods(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l := New()
		shown := make(map[string]*api.OffloadedPod)
		pending := make(map[string]*api.OffloadedPod) // by contract and UID
		t.Repeat(map[string]func(*rapid.T){
			"show": func(t *rapid.T) {
				o := ledgerPod(t)
				l.Show(o, isLive(o))
				shown[o.Name] = o
				delete(pending, keyOf(o.Spec.Contract, o.Spec.OriginUID))
			},
			"hide": func(t *rapid.T) {
				o := ledgerPod(t)
				l.Hide(o)
				delete(shown, o.Name)
			},
			"add": func(t *rapid.T) {
				o := ledgerPod(t)
				l.Add(o.Spec.Contract, o)
				if key := keyOf(o.Spec.Contract, o.Spec.OriginUID); shown[o.Name] == nil {
					pending[key] = o
				} else {
					delete(pending, key)
				}
			},
			"grow": func(t *rapid.T) {
				o := ledgerPod(t)
				more := podspec.Most(o.Spec.Requests, ledgerPod(t).Spec.Requests)
				undo := l.Grow(o, more)
				switch was := shown[o.Name]; {
				case rapid.Bool().Draw(t, "undone"):
					undo()
				case was != nil:
					// The resources that the next generation shows count.
					was.Generation, was.Spec.Requests = o.Generation+1, podspec.Most(was.Spec.Requests, more)
					l.Show(was, isLive(was))
				default:
					l.Hide(o)
				}
			},
			"drop": func(t *rapid.T) {
				o := ledgerPod(t)
				l.Drop(o.Spec.Contract, o.Spec.OriginUID)
				delete(pending, keyOf(o.Spec.Contract, o.Spec.OriginUID))
			},
			"": func(t *rapid.T) {
				for _, contract := range []string{"c-1", "c-2"} {
					want, pods := corev1.ResourceList{}, 0
					count := func(o *api.OffloadedPod) {
						if o.Spec.Contract != contract {
							return
						}
						pods++
						for name, q := range o.Spec.Requests {
							sum := want[name]
							sum.Add(q)
							want[name] = sum
						}
					}
					for _, o := range shown {
						if isLive(o) {
							count(o)
						}
					}
					for _, o := range pending {
						count(o)
					}
					got, n := l.Of(contract)
					if n != pods || len(got) != len(want) {
						t.Fatalf("%s: %d pods with %v, want %d with %v", contract, n, got, pods, want)
					}
					for name, q := range want {
						if have := got[name]; have.Cmp(q) != 0 {
							t.Fatalf("%s: %s %s, want %s", contract, have.String(), name, q.String())
						}
					}
				}
			},
		})
	})
}

// What another pod costs does not depend on how many there are.
func BenchmarkAnotherPodIsCounted(b *testing.B) {
	for _, pods := range []int{100, 10_000} {
		b.Run(fmt.Sprint(pods), func(b *testing.B) {
			l := New()
			pod := func(i int) *api.OffloadedPod {
				return &api.OffloadedPod{
					ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: fmt.Sprint("p-", i)},
					Spec: api.OffloadedPodSpec{Contract: "c-1", OriginUID: fmt.Sprint("u-", i), Requests: corev1.ResourceList{
						corev1.ResourcePods: resource.MustParse("1"), corev1.ResourceCPU: resource.MustParse("100m"),
					}},
				}
			}
			for i := range pods {
				l.Show(pod(i), true)
			}
			another := pod(pods)
			for b.Loop() {
				l.Of("c-1")
				l.Reserve("c-1", another)
				l.Show(another, true)
				l.Hide(another)
			}
		})
	}
}
