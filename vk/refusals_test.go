package vk

import (
	"encoding/json"
	"fmt"
	"os"
	"regexp"
	"slices"
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

// refusedFields has the least change by which a pod that an API server takes has a field that the table refuses.
func refusedFields() map[string]refusedPod {
	elsewhere := &metav1.LabelSelector{MatchLabels: map[string]string{"tier": "gold"}}
	terms := []corev1.PodAffinityTerm{{TopologyKey: corev1.LabelHostname, NamespaceSelector: elsewhere}}
	claimed := func(s *corev1.PodSpec) {
		s.ResourceClaims = []corev1.PodResourceClaim{{Name: "gpu", ResourceClaimName: new("gpu")}}
	}
	windows := &corev1.WindowsSecurityContextOptions{HostProcess: new(true)}
	return map[string]refusedPod{
		"spec.hostNetwork": {func(s *corev1.PodSpec) { s.HostNetwork = true }, "spec.hostNetwork"},
		"spec.hostPID":     {func(s *corev1.PodSpec) { s.HostPID = true }, "spec.hostPID"},
		"spec.hostIPC":     {func(s *corev1.PodSpec) { s.HostIPC = true }, "spec.hostIPC"},
		"spec.containers[].ports[].hostPort": {func(s *corev1.PodSpec) {
			s.Containers[0].Ports = []corev1.ContainerPort{{ContainerPort: 80, HostPort: 8080}}
		}, "port 8080"},
		"spec.containers[].ports[].hostIP": {func(s *corev1.PodSpec) {
			s.Containers[0].Ports = []corev1.ContainerPort{{ContainerPort: 80, HostIP: "192.0.2.1"}}
		}, "192.0.2.1"},
		"spec.affinity.podAffinity.requiredDuringSchedulingIgnoredDuringExecution[].namespaceSelector": {func(s *corev1.PodSpec) {
			s.Affinity = &corev1.Affinity{PodAffinity: &corev1.PodAffinity{RequiredDuringSchedulingIgnoredDuringExecution: terms}}
		}, `"tier"`},
		"spec.affinity.podAntiAffinity.requiredDuringSchedulingIgnoredDuringExecution[].namespaceSelector": {func(s *corev1.PodSpec) {
			s.Affinity = &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{RequiredDuringSchedulingIgnoredDuringExecution: terms}}
		}, `"tier"`},
		"spec.resourceClaims": {claimed, "resourceClaims"},
		"spec.containers[].resources.claims": {func(s *corev1.PodSpec) {
			claimed(s)
			s.Containers[0].Resources.Claims = []corev1.ResourceClaim{{Name: "gpu"}}
		}, `container "c" claims devices`},
		"spec.containers[].volumeDevices": {func(s *corev1.PodSpec) {
			s.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "v"}}}}
			s.Containers[0].VolumeDevices = []corev1.VolumeDevice{{Name: "v", DevicePath: "/dev/v"}}
		}, "block devices"},
		"spec.securityContext.windowsOptions.hostProcess": {func(s *corev1.PodSpec) {
			s.HostNetwork, s.SecurityContext = true, &corev1.PodSecurityContext{WindowsOptions: windows}
		}, "spec.securityContext.windowsOptions.hostProcess"},
		"spec.containers[].securityContext.windowsOptions.hostProcess": {func(s *corev1.PodSpec) {
			s.HostNetwork, s.Containers[0].SecurityContext = true, &corev1.SecurityContext{WindowsOptions: windows}
		}, `container "c" is a host process`},
		"spec.volumes[].projected.sources[].clusterTrustBundle": {projected(corev1.VolumeProjection{
			ClusterTrustBundle: &corev1.ClusterTrustBundleProjection{Name: new("b"), Path: "p"},
		}), "certificate or trust bundle"},
		"spec.volumes[].projected.sources[].podCertificate": {projected(corev1.VolumeProjection{
			PodCertificate: &corev1.PodCertificateProjection{SignerName: "example.com/s", KeyType: "ED25519", CredentialBundlePath: "p"},
		}), "certificate or trust bundle"},
	}
}

func projected(p corev1.VolumeProjection) func(*corev1.PodSpec) {
	return func(s *corev1.PodSpec) {
		s.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{Sources: []corev1.VolumeProjection{p}}}}}
	}
}

// impossible are fields that the table refuses and that no API server takes.
var impossible = []string{"spec.resources.claims"}

// refusedPods returns a pod with each field that the table of docs/offloading.md refuses.
func refusedPods(t *testing.T) map[string]refusedPod {
	t.Helper()
	guide, err := os.ReadFile("../docs/offloading.md")
	if err != nil {
		t.Fatal(err)
	}
	var kinds map[string]json.RawMessage
	if err := json.Unmarshal([]byte(volumeKinds), &kinds); err != nil {
		t.Fatal(err)
	}
	out, fields := map[string]refusedPod{}, refusedFields()
	for _, row := range regexp.MustCompile("(?m)^\\| `([^`]+)` \\| refused").FindAllSubmatch(guide, -1) {
		field := string(row[1])
		kind, isVolume := strings.CutPrefix(field, "spec.volumes[].")
		tc, known := fields[field]
		switch {
		case known:
		case isVolume && kinds[kind] != nil:
			volume := corev1.Volume{Name: "v"}
			if err := json.Unmarshal(fmt.Appendf(nil, `{%q: %s}`, kind, kinds[kind]), &volume.VolumeSource); err != nil {
				t.Fatalf("volume %s: %v", kind, err)
			}
			tc = refusedPod{func(s *corev1.PodSpec) { s.Volumes = []corev1.Volume{volume} }, kind}
		case slices.Contains(impossible, field):
			continue
		default:
			t.Fatalf("the table refuses %s, and no pod here has it", field)
		}
		out[field] = tc
	}
	if len(out) != len(kinds)+len(fields) {
		t.Fatalf("the table refuses %d fields, want the %d that are known here", len(out), len(kinds)+len(fields))
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
	i, longest, slowest := 0, time.Duration(0), ""
	for field, tc := range refusedPods(t) {
		i++
		name := fmt.Sprintf("refused-%d", i)
		t.Run(field, func(t *testing.T) {
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
			took := time.Since(begin)
			if took > longest {
				longest, slowest = took, field
			}
			if took > refusalShown {
				t.Errorf("it took %s, the limit is %s", took, refusalShown)
			}
		})
	}
	t.Logf("of %d refused pods each had its condition and event after %s at most (%s); the aim is %s", i, longest.Round(time.Millisecond), slowest, refusalShown)
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
