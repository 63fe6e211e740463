package podspec

import (
	"reflect"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	api "github.com/entente-dev/entente/api/v1alpha1"
)

// TestEveryFieldOfAPodSpecIsAdmittedByDecision compares what Admit does with each field of a
// consumer's pod. A field that Kubernetes adds has no line here, and fails it, so that a developer
// decides what a consumer may do with it.
func TestEveryFieldOfAPodSpecIsAdmittedByDecision(t *testing.T) {
	const kept, dropped, rewritten, refused = "kept", "dropped", "rewritten", "refused"
	want := map[string]string{
		"ActiveDeadlineSeconds": kept, "Affinity": rewritten, "AutomountServiceAccountToken": rewritten, "Containers": kept,
		"DNSConfig": kept, "DNSPolicy": kept, "DeprecatedServiceAccount": dropped, "EnableServiceLinks": kept,
		"EphemeralContainers": kept, "EvictionResponders": dropped, "HostAliases": kept, "HostIPC": kept, "HostNetwork": kept,
		"HostPID": kept, "HostUsers": kept, "Hostname": kept, "HostnameOverride": kept, "ImagePullSecrets": kept,
		"InitContainers": kept, "NodeName": dropped, "NodeSelector": dropped, "OS": kept, "Overhead": dropped,
		"PreemptionPolicy": dropped, "Priority": dropped, "PriorityClassName": dropped, "ReadinessGates": dropped,
		"ResourceClaims": refused, "Resources": kept, "RestartPolicy": kept, "RuntimeClassName": refused, "SchedulerName": dropped,
		"SchedulingGates": dropped, "SchedulingGroup": dropped, "SecurityContext": kept, "ServiceAccountName": rewritten,
		"SetHostnameAsFQDN": kept, "ShareProcessNamespace": kept, "Subdomain": kept, "TerminationGracePeriodSeconds": kept,
		"Tolerations": dropped, "TopologySpreadConstraints": rewritten, "Volumes": refused,
	}
	spec := reflect.TypeFor[corev1.PodSpec]()
	for i := range spec.NumField() {
		name := spec.Field(i).Name
		var pod Template
		fillTo(reflect.ValueOf(&pod.Spec).Elem().Field(i), 6)
		before := pod.Spec.DeepCopy()
		err := Admit(&pod, Terms{PodSecurity: baseline})
		was, is := reflect.ValueOf(before).Elem().Field(i), reflect.ValueOf(pod.Spec).Field(i)
		got := rewritten
		switch {
		case err != nil:
			got = refused
		case equality.Semantic.DeepEqual(was.Interface(), is.Interface()):
			got = kept
		case is.IsZero():
			got = dropped
		}
		if got != want[name] {
			t.Errorf("%s is %s, want %q", name, got, want[name])
		}
	}
}

// fillTo sets a value, and those in it down to a depth, to non-zero values.
func fillTo(v reflect.Value, depth int) {
	if depth == 0 || !v.CanSet() {
		return
	}
	switch v.Kind() {
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fillTo(v.Elem(), depth)
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
		fillTo(v.Index(0), depth-1)
	case reflect.Map:
		v.Set(reflect.MakeMap(v.Type()))
		key, value := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
		fillTo(key, depth-1)
		fillTo(value, depth-1)
		v.SetMapIndex(key, value)
	case reflect.Struct:
		for field, f := range v.Fields() {
			fillTo(f, depth-1)
			switch field.Name { // what decides about the whole
			case "TopologyKey":
				f.SetString(corev1.LabelHostname)
			case "NamespaceSelector":
				f.Set(reflect.ValueOf(&metav1.LabelSelector{}))
			}
		}
	case reflect.String:
		v.SetString("x")
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int, reflect.Int8, reflect.Int32, reflect.Int64:
		v.SetInt(1)
	case reflect.Uint8:
		v.SetUint(1)
	}
}

// TestEveryKindOfVolumeIsAdmittedByDecision compares what Admit does with each kind of volume, and
// with each source of a projected one, at the strictest and at the loosest level.
func TestEveryKindOfVolumeIsAdmittedByDecision(t *testing.T) {
	taken := map[string]bool{
		"ConfigMap": true, "DownwardAPI": true, "EmptyDir": true, "Image": true, "Projected": true, "Secret": true,
		// Whether it is one of the consumer's does not depend on the pod.
		"PersistentVolumeClaim": true,
		"HostPath":              false, "AWSElasticBlockStore": false, "AzureDisk": false, "AzureFile": false, "CSI": false,
		"CephFS": false, "Cinder": false, "Ephemeral": false, "FC": false, "FlexVolume": false, "Flocker": false,
		"GCEPersistentDisk": false, "GitRepo": false, "Glusterfs": false, "ISCSI": false, "NFS": false,
		"PhotonPersistentDisk": false, "PortworxVolume": false, "Quobyte": false, "RBD": false, "ScaleIO": false,
		"StorageOS": false, "VsphereVolume": false,
	}
	projected := map[string]bool{
		"ConfigMap": true, "DownwardAPI": true, "Secret": true,
		"ClusterTrustBundle": false, "PodCertificate": false, "ServiceAccountToken": false,
	}
	for _, level := range []api.PodSecurityLevel{restricted, privileged} {
		for f := range reflect.TypeFor[corev1.VolumeSource]().Fields() {
			want, decided := taken[f.Name]
			// Who may do everything on a node may have its files.
			want = want || (f.Name == "HostPath" && level == privileged)
			v := corev1.Volume{Name: "v"}
			fillTo(reflect.ValueOf(&v.VolumeSource).Elem().FieldByIndex(f.Index), 4)
			if v.Projected != nil {
				v.Projected.Sources = nil // each has its own decision below
			}
			if err := Admit(&Template{Spec: corev1.PodSpec{Volumes: []corev1.Volume{v}}}, Terms{PodSecurity: level}); !decided || (err == nil) != want {
				t.Errorf("%s volume at level %s: decided %t, taken %t, want %t (%v)", f.Name, level, decided, err == nil, want, err)
			}
		}
		for f := range reflect.TypeFor[corev1.VolumeProjection]().Fields() {
			want, decided := projected[f.Name]
			var p corev1.VolumeProjection
			fillTo(reflect.ValueOf(&p).Elem().FieldByIndex(f.Index), 4)
			v := corev1.Volume{Name: "v", VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{Sources: []corev1.VolumeProjection{p}}}}
			if err := Admit(&Template{Spec: corev1.PodSpec{Volumes: []corev1.Volume{v}}}, Terms{PodSecurity: level}); !decided || (err == nil) != want {
				t.Errorf("projected %s at level %s: decided %t, taken %t, want %t (%v)", f.Name, level, decided, err == nil, want, err)
			}
		}
	}
}
