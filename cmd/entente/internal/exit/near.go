package exit

import (
	"slices"
	"strings"
)

// NearNames returns the known names that are like an unknown one: first those that differ by
// a part of an ID, like the names that discovery gives, then those that differ by a typing
// error.
func NearNames(name string, known []string) []string {
	if name == "" || len(name) > 63 { // longer than any name
		return nil
	}
	name = strings.ToLower(name)
	var extended, mistyped []string
	for _, k := range known {
		switch lower := strings.ToLower(k); {
		case strings.HasPrefix(lower, name+"-"), strings.HasPrefix(name, lower+"-"):
			extended = append(extended, k)
		case len(k) <= 63 && distance(name, lower) <= len(name)/4:
			mistyped = append(mistyped, k)
		}
	}
	near := slices.Concat(extended, mistyped)
	return near[:min(len(near), MaxNear)]
}

// distance is how many letters have to be added, removed, replaced or swapped with their
// neighbours to make one word of another.
func distance(a, b string) int {
	rows := make([][]int, len(a)+1)
	for i := range rows {
		rows[i] = make([]int, len(b)+1)
		rows[i][0] = i
	}
	for j := range rows[0] {
		rows[0][j] = j
	}
	for i := 1; i <= len(a); i++ {
		for j := 1; j <= len(b); j++ {
			differ := 1
			if a[i-1] == b[j-1] {
				differ = 0
			}
			rows[i][j] = min(rows[i-1][j]+1, rows[i][j-1]+1, rows[i-1][j-1]+differ)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				rows[i][j] = min(rows[i][j], rows[i-2][j-2]+1)
			}
		}
	}
	return rows[len(a)][len(b)]
}
