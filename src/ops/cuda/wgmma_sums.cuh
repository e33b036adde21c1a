// The sums of a warpgroup product as operands of inline assembly, where the array is named d: QUIRE_SUMS_n lists n of
// them, QUIRE_NAMES_n their names in the instruction. For the wgmma_*.cuh files.
#pragma once

// clang-format off
#define QUIRE_SUMS_4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define QUIRE_SUMS_8(i) QUIRE_SUMS_4(i), QUIRE_SUMS_4(i + 4)
#define QUIRE_SUMS_16(i) QUIRE_SUMS_8(i), QUIRE_SUMS_8(i + 8)
#define QUIRE_SUMS_24(i) QUIRE_SUMS_16(i), QUIRE_SUMS_8(i + 16)
#define QUIRE_SUMS_32(i) QUIRE_SUMS_16(i), QUIRE_SUMS_16(i + 16)
#define QUIRE_SUMS_40(i) QUIRE_SUMS_32(i), QUIRE_SUMS_8(i + 32)
#define QUIRE_SUMS_48(i) QUIRE_SUMS_32(i), QUIRE_SUMS_16(i + 32)
#define QUIRE_SUMS_56(i) QUIRE_SUMS_48(i), QUIRE_SUMS_8(i + 48)
#define QUIRE_SUMS_64(i) QUIRE_SUMS_32(i), QUIRE_SUMS_32(i + 32)
#define QUIRE_SUMS_128(i) QUIRE_SUMS_64(i), QUIRE_SUMS_64(i + 64)
#define QUIRE_NAMES_4 "%0, %1, %2, %3"
#define QUIRE_NAMES_8 QUIRE_NAMES_4 ", %4, %5, %6, %7"
#define QUIRE_NAMES_16 QUIRE_NAMES_8 ", %8, %9, %10, %11, %12, %13, %14, %15"
#define QUIRE_NAMES_24 QUIRE_NAMES_16 ", %16, %17, %18, %19, %20, %21, %22, %23"
#define QUIRE_NAMES_32 QUIRE_NAMES_24 ", %24, %25, %26, %27, %28, %29, %30, %31"
#define QUIRE_NAMES_40 QUIRE_NAMES_32 ", %32, %33, %34, %35, %36, %37, %38, %39"
#define QUIRE_NAMES_48 QUIRE_NAMES_32 ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47"
#define QUIRE_NAMES_56 QUIRE_NAMES_48 ", %48, %49, %50, %51, %52, %53, %54, %55"
#define QUIRE_NAMES_64 QUIRE_NAMES_48 ", %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define QUIRE_NAMES_128 QUIRE_NAMES_64 ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, %80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, %112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
// clang-format on
