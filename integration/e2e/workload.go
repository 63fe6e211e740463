package e2e

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/entente-dev/entente/api/v1alpha1"
)

const (
	// ToolImage is the lab's image of a small server and its clients, /tool.
	ToolImage = "lab.entente.dev/tool:v1"
	// WebPort is where its server listens.
	WebPort = 8080
)

// Where pods are to run.
type Where int

// The places: wherever the scheduler wants, evenly over nodes, at home, abroad.
const (
	Anywhere Where = iota
	Everywhere
	AtHome
	Away
)

// Web is a Deployment of the lab's server, whose pods answer who and on which
// node they are, and the Service of that name.
func Web(namespace, name string, replicas int32, where Where) (*appsv1.Deployment, *corev1.Service) {
	labels := map[string]string{"app": name}
	pod := WebPod(namespace, "", labels)
	place(&pod.Spec, where, labels)
	d := &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: labels},
		Spec: appsv1.DeploymentSpec{
			Replicas: &replicas,
			Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: pod.Spec},
		},
	}
	s := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: labels},
		Spec: corev1.ServiceSpec{
			Selector: labels,
			Ports:    []corev1.ServicePort{{Name: "http", Port: WebPort, TargetPort: intstr.FromInt32(WebPort)}},
		},
	}
	return d, s
}

// WebPod is a pod of the lab's server.
func WebPod(namespace, name string, labels map[string]string) *corev1.Pod {
	field := func(name, path string) corev1.EnvVar {
		return corev1.EnvVar{Name: name, ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: path}}}
	}
	grace := int64(1)
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: labels},
		Spec: corev1.PodSpec{
			TerminationGracePeriodSeconds: &grace,
			Containers: []corev1.Container{{
				Name: "web", Image: ToolImage, ImagePullPolicy: corev1.PullIfNotPresent,
				Args: []string{"serve"},
				Env: []corev1.EnvVar{
					field("POD_NAME", "metadata.name"), field("NODE_NAME", "spec.nodeName"), field("CLUSTER_NAME", "metadata.namespace"),
				},
				Ports: []corev1.ContainerPort{{Name: "http", ContainerPort: WebPort}},
				ReadinessProbe: &corev1.Probe{
					PeriodSeconds: 1,
					ProbeHandler:  corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Path: "/healthz", Port: intstr.FromInt32(WebPort)}},
				},
			}},
		},
	}
}

// place constrains where the scheduler puts pods.
func place(spec *corev1.PodSpec, where Where, labels map[string]string) {
	switch where {
	case Anywhere:
	case Everywhere:
		// Nodes whose taints the pods do not tolerate do not count for spreading, so that pods can
		// come home when a virtual node is drained.
		honor := corev1.NodeInclusionPolicyHonor
		spec.TopologySpreadConstraints = []corev1.TopologySpreadConstraint{{
			MaxSkew: 1, TopologyKey: corev1.LabelHostname, WhenUnsatisfiable: corev1.DoNotSchedule,
			LabelSelector: &metav1.LabelSelector{MatchLabels: labels}, NodeTaintsPolicy: &honor,
		}}
	case AtHome:
		spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{
			RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
				MatchExpressions: []corev1.NodeSelectorRequirement{{Key: v1alpha1.LabelVirtualNode, Operator: corev1.NodeSelectorOpDoesNotExist}},
			}}},
		}}
	case Away:
		spec.NodeSelector = map[string]string{v1alpha1.LabelVirtualNode: "true"}
	}
}

// Create makes objects at home.
func (s *Side) Create(ctx context.Context, objects ...ctrlclient.Object) error {
	for _, o := range objects {
		if err := s.Client.Create(ctx, o); err != nil {
			return fmt.Errorf("create %T %s: %w", o, o.GetName(), err)
		}
	}
	return nil
}

// Split separates pods on virtual nodes from those at home.
func Split(pods []corev1.Pod) (home, away []corev1.Pod) {
	for _, p := range pods {
		if strings.HasSuffix(p.Spec.NodeName, v1alpha1.VirtualNodeSuffix) {
			away = append(away, p)
		} else {
			home = append(home, p)
		}
	}
	return home, away
}

// Answers fetches a URL n times from a pod and counts the answers by what they
// say.
func (s *Side) Answers(ctx context.Context, namespace, pod string, n int, url string) (map[string]int, error) {
	out, err := s.InPod(ctx, namespace, pod, "/tool", "curl", "-n", fmt.Sprint(n), url)
	if err != nil {
		return nil, err
	}
	answers := map[string]int{}
	for line := range strings.Lines(out) {
		answers[strings.TrimSpace(line)]++
	}
	return answers, nil
}

// ReachesAll fetches the name of the responding pod at a URL, from a pod, until each of the pods
// responded and no request failed.
func (s *Side) ReachesAll(ctx context.Context, limit time.Duration, namespace, from, url string, pods []corev1.Pod) error {
	what := fmt.Sprintf("pod %s to reach %d pods by %s", from, len(pods), url)
	seen := map[string]bool{}
	return s.world.Until(ctx, limit, what, func(ctx context.Context) (string, error) {
		answers, err := s.Answers(ctx, namespace, from, 4*len(pods), url)
		if err != nil {
			clear(seen)
			return "", err
		}
		for a := range answers {
			name, _, _ := strings.Cut(a, " ")
			seen[name] = true
		}
		for i := range pods {
			if !seen[pods[i].Name] {
				return fmt.Sprintf("%s did not answer yet; answers were %v", pods[i].Name, answers), nil
			}
		}
		return "", nil
	})
}

// Twin finds the pod of this cluster that runs a pod of the other.
func (s *Side) Twin(ctx context.Context, origin *corev1.Pod) (*corev1.Pod, error) {
	var list corev1.PodList
	if err := s.Client.List(ctx, &list, ctrlclient.MatchingLabels{v1alpha1.LabelOriginUID: string(origin.UID)}); err != nil {
		return nil, fmt.Errorf("list pods of %s: %w", s.Name, err)
	}
	if len(list.Items) != 1 {
		return nil, fmt.Errorf("%d pods of %s run %s, want one", len(list.Items), s.Name, origin.Name)
	}
	return &list.Items[0], nil
}

// Lives says which pod it is and how often it was started.
type Lives map[string]string

// LivesOf maps pods by namespace and name to UID and restarts.
func LivesOf(pods []corev1.Pod) Lives {
	lives := Lives{}
	for i := range pods {
		p := &pods[i]
		lives[p.Namespace+"/"+p.Name] = fmt.Sprintf("UID %s, %d restarts", p.UID, Restarts(p))
	}
	return lives
}

// Same says what differs between two accounts of pods; nothing if they are the
// same pods, started equally often.
func (l Lives) Same(now Lives) error {
	var diff []error
	for name, was := range l {
		if is, ok := now[name]; !ok {
			diff = append(diff, fmt.Errorf("%s (%s) is gone", name, was))
		} else if is != was {
			diff = append(diff, fmt.Errorf("%s was %s and is %s", name, was, is))
		}
	}
	for name, is := range now {
		if _, ok := l[name]; !ok {
			diff = append(diff, fmt.Errorf("%s (%s) is new", name, is))
		}
	}
	return errors.Join(diff...)
}
