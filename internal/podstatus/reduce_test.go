package podstatus

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"github.com/entente-dev/entente/internal/podspec"
	"github.com/entente-dev/entente/internal/podstatus/podstatustest"
)

// withContainers returns a status with so many containers of each kind, and with the text wherever there can be one.
func withContainers(n int, text string) *corev1.PodStatus {
	s := podstatustest.Forged(10)
	s.Phase, s.Reason, s.Message = corev1.PodSucceeded, text, text
	var list []corev1.ContainerStatus
	for i := range n {
		c := *s.ContainerStatuses[0].DeepCopy()
		c.Name, c.Image, c.ImageID, c.ContainerID = fmt.Sprintf("%s%03d", strings.Repeat("c", 60), i), text, text, text
		c.State = corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{
			ExitCode: 7, Signal: 9, StartedAt: testNow, FinishedAt: testNow, Reason: text, Message: text, ContainerID: text,
		}}
		c.LastTerminationState = c.State
		c.Resources = nil
		list = append(list, c)
	}
	s.InitContainerStatuses, s.ContainerStatuses, s.EphemeralContainerStatuses = list, list, list
	for i := range s.Conditions {
		s.Conditions[i].Reason, s.Conditions[i].Message = text, text
	}
	return s
}

func TestAnEncodedStatusIsShortForAnyPod(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"a", "<", `"`, "é", "\u2028", "\xff"} {
		for _, n := range []int{0, 1, 30, podspec.MaxContainers, 4 * podspec.MaxContainers} {
			data, err := Encode(withContainers(n, strings.Repeat(text, 5000)))
			if err != nil {
				t.Fatal(err)
			}
			got, err := Decode(data)
			if err != nil {
				t.Errorf("%d containers and %q: %v", n, text, err)
				continue
			}
			if got.Phase != corev1.PodSucceeded {
				t.Errorf("%d containers and %q: the phase is %q", n, text, got.Phase)
			}
			for _, c := range got.InitContainerStatuses[:min(n, podspec.MaxContainers)] {
				if end := c.State.Terminated; end == nil || end.ExitCode != 7 || end.Signal != 9 || !end.FinishedAt.Equal(&testNow) {
					t.Errorf("%d containers and %q: %s ended as %+v", n, text, c.Name, c.State)
				}
			}
		}
	}
}

func TestAnEncodedStatusHasAllThatHomeUses(t *testing.T) {
	t.Parallel()
	s := withContainers(podspec.MaxContainers/8, strings.Repeat("image", 10))
	s.Message = "ended"
	data, err := Encode(s)
	if err != nil {
		t.Fatal(err)
	}
	got, err := Decode(data)
	if err != nil {
		t.Fatal(err)
	}
	want, err := json.Marshal(clean(s))
	if err != nil {
		t.Fatal(err)
	}
	if again, err := json.Marshal(got); err != nil || string(again) != string(want) {
		t.Errorf("%v: of %s arrives %s", err, want, again)
	}
}

func TestStatusesOfContainersThatThePodLacksAreNotKept(t *testing.T) {
	t.Parallel()
	of := func(names ...string) (out []corev1.ContainerStatus) {
		for _, name := range names {
			out = append(out, corev1.ContainerStatus{Name: name})
		}
		return out
	}
	names := func(list []corev1.ContainerStatus) (out []string) {
		for _, c := range list {
			out = append(out, c.Name)
		}
		return out
	}
	spec := &corev1.PodSpec{
		InitContainers: []corev1.Container{{Name: "i"}}, Containers: []corev1.Container{{Name: "b"}, {Name: "a"}},
		EphemeralContainers: []corev1.EphemeralContainer{{EphemeralContainerCommon: corev1.EphemeralContainerCommon{Name: "d1"}}},
	}
	s := &corev1.PodStatus{
		InitContainerStatuses: of("x", "i", "i"), ContainerStatuses: of("a", "proxy", "b", "b", "y"),
		EphemeralContainerStatuses: of("d0", "d1", "d2", "d1"), // one of which the cache may not have yet
	}
	before := Bytes(s, 100)
	Trim(s, spec)
	got := [][]string{names(s.InitContainerStatuses), names(s.ContainerStatuses), names(s.EphemeralContainerStatuses)}
	if diff := cmp.Diff([][]string{{"i"}, {"b", "a"}, {"d1", "d0"}}, got); diff != "" {
		t.Errorf("containers (-want +got):\n%s", diff)
	}
	if after := Bytes(s, 100); before != 100+12*containerBytes || after != 100+5*containerBytes || Bytes(nil, 7) != 7 {
		t.Errorf("it counts as %d bytes, then as %d", before, after)
	}
	Trim(nil, spec)
}

// Jobs and ReplicaSets decide by an outline as they would by the whole status.
func TestAnOutlineSaysHowAPodEnded(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"a", "<", `"`, "é", "\u2028", "\xff"} {
		for _, n := range []int{0, 1, 2, 30, 4 * podspec.MaxContainers} {
			in := withContainers(n, strings.Repeat(text, 5000))
			in.Phase = corev1.PodFailed
			in.Conditions = append(in.Conditions, corev1.PodCondition{Type: corev1.PodReady, Status: corev1.ConditionFalse},
				corev1.PodCondition{Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue, Reason: strings.Repeat(text, 5000)})
			whole, err := Encode(in)
			if err != nil {
				t.Fatal(err)
			}
			b := Outline(whole)
			if len(b) > maxOutlineBytes {
				t.Fatalf("%d containers and %q: %d bytes", n, text, len(b))
			}
			got, err := Decode(b)
			if err != nil {
				t.Fatalf("%d containers and %q: %v", n, text, err)
			}
			if c := Condition(got.Conditions, corev1.DisruptionTarget); got.Phase != corev1.PodFailed || got.Reason == "" || c == nil || c.Status != corev1.ConditionTrue || len(got.Conditions) != 1 {
				t.Errorf("%d containers and %q: %s", n, text, b)
			}
			if n > 2 || text != "a" {
				continue // without those for which there is no room
			}
			for _, list := range [][]corev1.ContainerStatus{got.InitContainerStatuses, got.ContainerStatuses} {
				if len(list) != n {
					t.Fatalf("%d containers and %q: %s", n, text, b)
				}
				for _, c := range list {
					if end := c.State.Terminated; end == nil || end.ExitCode != 7 || end.Signal != 9 || end.Reason == "" || !end.FinishedAt.Equal(&testNow) || c.LastTerminationState.Terminated != nil {
						t.Errorf("%d containers and %q: %s ended as %+v", n, text, c.Name, c.State)
					}
				}
			}
			if again := Outline(b); string(again) != string(b) {
				t.Errorf("an outline of the outline is\n%s\nnot\n%s", again, b)
			}
		}
	}
	if b := Outline([]byte("{")); b != nil {
		t.Errorf("of a malformed status there is %s", b)
	}
}

func TestAnOutlinePrefersContainersThatFailed(t *testing.T) {
	t.Parallel()
	in := withContainers(30, "x")
	for i := range in.ContainerStatuses[1:] { // the lists are one
		in.ContainerStatuses[1+i].State.Terminated.ExitCode = 0
	}
	whole, err := Encode(in)
	if err != nil {
		t.Fatal(err)
	}
	got, err := Decode(Outline(whole))
	if err != nil || len(got.ContainerStatuses) != 1 || got.ContainerStatuses[0].State.Terminated.ExitCode != 7 {
		t.Errorf("%+v, %v", got, err)
	}
}
