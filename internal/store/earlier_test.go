package store

import (
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"
)

func TestOneLargeEnvelopeDoesNotDropTheOthers(t *testing.T) {
	t.Parallel()
	name := func(revision int) string { return annotationEarlier + strconv.Itoa(revision) }
	annotations := map[string]string{"example.com/other": strings.Repeat("x", 2*maxEarlierBytes)}
	for revision := 1; revision <= maxEarlier+3; revision++ {
		annotations[name(revision)] = "small"
	}
	annotations[name(maxEarlier+2)] = strings.Repeat("x", maxEarlierBytes+1)
	dropEarlier(annotations)
	want := []string{"example.com/other"}
	for revision := 4; revision <= maxEarlier+3; revision++ {
		if revision != maxEarlier+2 {
			want = append(want, name(revision))
		}
	}
	slices.Sort(want)
	if got := slices.Sorted(maps.Keys(annotations)); !slices.Equal(got, want) {
		t.Errorf("kept %v, want %v", got, want)
	}
}
