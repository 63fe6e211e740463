package vk

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	api "github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/internal/podstatus"
)

// refusalShown is how soon a pod that cannot run elsewhere has to say so.
const refusalShown = 5 * time.Second

// refusedPod has a field that is refused, and its name in the refusal.
type refusedPod struct {
	change func(*corev1.PodSpec)
	names  string
}

// volumeKinds has, of each kind of volume that the table of docs/offloading.md refuses, the least that an API server
// takes.
const volumeKinds = `{
	"awsElasticBlockStore": {"volumeID": "v"}, "azureDisk": {"diskName": "d", "diskURI": "https://d"}, "azureFile": {"secretName": "s", "shareName": "s"},
	"cephfs": {"monitors": ["m"]}, "cinder": {"volumeID": "v"}, "csi": {"driver": "d"}, "fc": {"targetWWNs": ["w"], "lun": 1}, "flexVolume": {"driver": "d/d"},
	"flocker": {"datasetName": "d"}, "gcePersistentDisk": {"pdName": "p"}, "gitRepo": {"repository": "r"}, "glusterfs": {"endpoints": "e", "path": "p"},
	"hostPath": {"path": "/x"}, "iscsi": {"targetPortal": "t", "iqn": "iqn.2026-11.com.example:x", "lun": 1}, "nfs": {"server": "s", "path": "/x"},
	"photonPersistentDisk": {"pdID": "p"}, "portworxVolume": {"volumeID": "v"}, "quobyte": {"registry": "r:1", "volume": "v"},
	"rbd": {"monitors": ["m"], "image": "i"}, "scaleIO": {"gateway": "g", "system": "s", "secretRef": {"name": "s"}, "volumeName": "v"},
	"storageos": {"volumeName": "v"}, "vsphereVolume": {"volumePath": "p"}
}`

// refusedVolumes returns a pod with a volume of each kind that the table refuses.
func refusedVolumes(t *testing.T) map[string]refusedPod {
	t.Helper()
	guide, err := os.ReadFile("../docs/offloading.md")
	if err != nil {
		t.Fatal(err)
	}
	var kinds map[string]json.RawMessage
	if err := json.Unmarshal([]byte(volumeKinds), &kinds); err != nil {
		t.Fatal(err)
	}
	out := map[string]refusedPod{}
	for _, row := range regexp.MustCompile("(?m)^\\| `spec\\.volumes\\[\\]\\.([A-Za-z]+)` \\| refused").FindAllSubmatch(guide, -1) {
		kind := string(row[1])
		volume := corev1.Volume{Name: "v"}
		if err := json.Unmarshal(fmt.Appendf(nil, `{%q: %s}`, kind, kinds[kind]), &volume.VolumeSource); err != nil {
			t.Fatalf("volume %s: %v", kind, err)
		}
		out[strings.ToLower(kind)] = refusedPod{func(s *corev1.PodSpec) { s.Volumes = []corev1.Volume{volume} }, kind}
	}
	if len(out) != len(kinds) {
		t.Fatalf("the table refuses %d kinds of volumes, want the %d that are known here", len(out), len(kinds))
	}
	return out
}

// TestRefusalsOnARealAPIServer binds pods with fields that are refused, and wants of each the
// condition and the event that name the field.
func TestRefusalsOnARealAPIServer(t *testing.T) {
	r := newReal(t)
	r.start()
	defer func() { r.stop() }()
	r.remote.connect(true)
	r.until("the node is ready", func() bool { n := r.office(); return n != nil && readyOf(n).Status == corev1.ConditionTrue })
	shuns := func(s *metav1.LabelSelector) *corev1.Affinity {
		return &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{{
			TopologyKey: corev1.LabelHostname, NamespaceSelector: s,
		}}}}
	}
	pods := map[string]refusedPod{
		"host-network": {func(s *corev1.PodSpec) { s.HostNetwork = true }, "spec.hostNetwork"},
		"host-pid":     {func(s *corev1.PodSpec) { s.HostPID = true }, "spec.hostPID"},
		"host-ipc":     {func(s *corev1.PodSpec) { s.HostIPC = true }, "spec.hostIPC"},
		"host-port": {func(s *corev1.PodSpec) {
			s.Containers[0].Ports = []corev1.ContainerPort{{ContainerPort: 80, HostPort: 8080}}
		}, "port 8080"},
		"namespaces-by-label": {func(s *corev1.PodSpec) {
			s.Affinity = shuns(&metav1.LabelSelector{MatchLabels: map[string]string{"tier": "gold"}})
		}, `"tier"`},
		"resource-claims": {func(s *corev1.PodSpec) {
			s.ResourceClaims = []corev1.PodResourceClaim{{Name: "gpu", ResourceClaimName: new("gpu")}}
		}, "resourceClaims"},
	}
	maps.Copy(pods, refusedVolumes(t))
	for name, tc := range pods {
		t.Run(name, func(t *testing.T) {
			begin := time.Now()
			r.bind(name, func(p *corev1.Pod) { tc.change(&p.Spec) })
			r.until("pod "+name+" says that it is refused", func() bool {
				p := r.pod(name)
				c := podstatus.Condition(p.Status.Conditions, api.PodOffloaded)
				return p.Status.Reason == reasonNotOffloaded && c != nil && c.Status == corev1.ConditionFalse && c.Reason == reasonNotOffloaded && strings.Contains(c.Message, tc.names)
			})
			r.until("there is an event of it", func() bool {
				list, err := r.owner.CoreV1().Events("shop").List(t.Context(), metav1.ListOptions{FieldSelector: "reason=" + reasonNotOffloaded + ",involvedObject.name=" + name})
				return err == nil && len(list.Items) == 1 && strings.Contains(list.Items[0].Message, tc.names)
			})
			if took := time.Since(begin); took > refusalShown {
				t.Errorf("it took %s, the limit is %s", took, refusalShown)
			}
		})
	}
	t.Run("a preference stays behind with a note", func(t *testing.T) {
		r.bind("prefers", func(p *corev1.Pod) {
			terms := shuns(&metav1.LabelSelector{MatchLabels: map[string]string{"tier": "gold"}}).PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution
			p.Spec.Affinity = &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{PreferredDuringSchedulingIgnoredDuringExecution: []corev1.WeightedPodAffinityTerm{{Weight: 1, PodAffinityTerm: terms[0]}}}}
		})
		r.until("it runs", func() bool { return r.pod("prefers").Status.Phase == corev1.PodRunning })
		r.until("an event names the dropped fields", func() bool {
			list, err := r.owner.CoreV1().Events("shop").List(t.Context(), metav1.ListOptions{FieldSelector: "reason=NotCarried,involvedObject.name=prefers"})
			return err == nil && len(list.Items) == 1 && strings.Contains(list.Items[0].Message, `"tier"`)
		})
	})
}
