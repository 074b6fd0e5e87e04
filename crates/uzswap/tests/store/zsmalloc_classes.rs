//! Goal: the size classes are the kernel's.
//! Method: two whole tables, and the figures of the kernel's documentation for every chain size.
//! Blind to: nothing about classes; what is done with them is in the other tests.

use uzswap::page::PAGE_SIZE;
use uzswap::zpool::zsmalloc::{
    CHAIN_SIZE_MAX, CHAIN_SIZE_MIN, ChainRule, ClassTable, FULLNESS_GROUPS, HANDLE_BYTES,
    HandleHeader, ZsmallocOptions, fullness_group,
};

/// Index, slot bytes, pages, slots, tail waste bytes, largest object bytes.
type Row = (usize, usize, usize, usize, usize, usize);

/// Kernels 6.1 and 6.2.
#[rustfmt::skip]
const CHAIN_4_USED_PERCENT: [Row; 69] = [
    (0, 32, 1, 128, 0, 24), (1, 48, 3, 256, 0, 40), (2, 64, 1, 64, 0, 56), (3, 80, 1, 51, 16, 72),
    (4, 96, 3, 128, 0, 88), (5, 112, 2, 73, 16, 104), (6, 128, 1, 32, 0, 120),
    (7, 144, 3, 85, 48, 136), (8, 160, 2, 51, 32, 152), (9, 176, 4, 93, 16, 168),
    (10, 192, 3, 64, 0, 184), (11, 208, 2, 39, 80, 200), (12, 224, 4, 73, 32, 216),
    (13, 240, 1, 17, 16, 232), (14, 256, 1, 16, 0, 248), (15, 272, 1, 15, 16, 264),
    (16, 288, 1, 14, 64, 280), (17, 304, 3, 40, 128, 296), (18, 320, 4, 51, 64, 312),
    (19, 336, 1, 12, 64, 328), (20, 352, 2, 23, 96, 344), (21, 368, 1, 11, 48, 360),
    (22, 384, 3, 32, 0, 376), (23, 400, 1, 10, 96, 392), (24, 416, 4, 39, 160, 408),
    (25, 432, 3, 28, 192, 424), (26, 448, 1, 9, 64, 440), (27, 464, 4, 35, 144, 456),
    (28, 480, 2, 17, 32, 472), (29, 496, 4, 33, 16, 488), (30, 512, 1, 8, 0, 504),
    (31, 528, 4, 31, 16, 520), (32, 544, 2, 15, 32, 536), (33, 560, 4, 29, 144, 552),
    (34, 576, 1, 7, 64, 568), (35, 592, 4, 27, 400, 584), (36, 608, 3, 20, 128, 600),
    (37, 624, 2, 13, 80, 616), (38, 640, 3, 19, 128, 632), (40, 672, 1, 6, 64, 664),
    (42, 704, 4, 23, 192, 696), (43, 720, 3, 17, 48, 712), (44, 736, 2, 11, 96, 728),
    (46, 768, 3, 16, 0, 760), (49, 816, 1, 5, 16, 808), (51, 848, 4, 19, 272, 840),
    (52, 864, 3, 14, 192, 856), (54, 896, 2, 9, 128, 888), (57, 944, 3, 13, 16, 936),
    (58, 960, 4, 17, 64, 952), (62, 1024, 1, 4, 0, 1016), (66, 1088, 4, 15, 64, 1080),
    (67, 1104, 3, 11, 144, 1096), (71, 1168, 2, 7, 16, 1160), (74, 1216, 3, 10, 128, 1208),
    (76, 1248, 4, 13, 160, 1240), (83, 1360, 1, 3, 16, 1352), (91, 1488, 4, 11, 16, 1480),
    (94, 1536, 3, 8, 0, 1528), (100, 1632, 2, 5, 32, 1624), (107, 1744, 3, 7, 80, 1736),
    (111, 1808, 4, 9, 112, 1800), (126, 2048, 1, 2, 0, 2040), (144, 2336, 4, 7, 32, 2328),
    (151, 2448, 3, 5, 48, 2440), (168, 2720, 2, 3, 32, 2712), (190, 3072, 3, 4, 0, 3064),
    (202, 3264, 4, 5, 64, 3256), (254, 4096, 1, 1, 0, 4096),
];

/// Kernels from 6.3 on, as built by default.
#[rustfmt::skip]
const CHAIN_8_LEAST_WASTE: [Row; 119] = [
    (0, 32, 1, 128, 0, 24), (1, 48, 3, 256, 0, 40), (2, 64, 1, 64, 0, 56), (3, 80, 5, 256, 0, 72),
    (4, 96, 3, 128, 0, 88), (5, 112, 7, 256, 0, 104), (6, 128, 1, 32, 0, 120),
    (7, 144, 7, 199, 16, 136), (8, 160, 5, 128, 0, 152), (9, 176, 4, 93, 16, 168),
    (10, 192, 3, 64, 0, 184), (11, 208, 3, 59, 16, 200), (12, 224, 7, 128, 0, 216),
    (13, 240, 1, 17, 16, 232), (14, 256, 1, 16, 0, 248), (15, 272, 1, 15, 16, 264),
    (16, 288, 5, 71, 32, 280), (17, 304, 7, 94, 96, 296), (18, 320, 5, 64, 0, 312),
    (19, 336, 6, 73, 48, 328), (20, 352, 8, 93, 32, 344), (21, 368, 8, 89, 16, 360),
    (22, 384, 3, 32, 0, 376), (23, 400, 5, 51, 80, 392), (24, 416, 6, 59, 32, 408),
    (25, 432, 7, 66, 160, 424), (26, 448, 7, 64, 0, 440), (27, 464, 5, 44, 64, 456),
    (28, 480, 2, 17, 32, 472), (29, 496, 4, 33, 16, 488), (30, 512, 1, 8, 0, 504),
    (31, 528, 4, 31, 16, 520), (32, 544, 2, 15, 32, 536), (33, 560, 7, 51, 112, 552),
    (34, 576, 1, 7, 64, 568), (35, 592, 8, 55, 208, 584), (36, 608, 7, 47, 96, 600),
    (37, 624, 2, 13, 80, 616), (38, 640, 5, 32, 0, 632), (39, 656, 5, 31, 144, 648),
    (40, 672, 1, 6, 64, 664), (41, 688, 8, 47, 432, 680), (42, 704, 5, 29, 64, 696),
    (43, 720, 3, 17, 48, 712), (44, 736, 2, 11, 96, 728), (45, 752, 7, 38, 96, 744),
    (46, 768, 3, 16, 0, 760), (47, 784, 5, 26, 96, 776), (49, 816, 1, 5, 16, 808),
    (50, 832, 8, 39, 320, 824), (51, 848, 5, 24, 128, 840), (52, 864, 7, 33, 160, 856),
    (53, 880, 8, 37, 208, 872), (54, 896, 7, 32, 0, 888), (55, 912, 7, 31, 400, 904),
    (56, 928, 5, 22, 64, 920), (57, 944, 3, 13, 16, 936), (58, 960, 4, 17, 64, 952),
    (59, 976, 6, 25, 176, 968), (60, 992, 8, 33, 32, 984), (62, 1024, 1, 4, 0, 1016),
    (64, 1056, 8, 31, 32, 1048), (65, 1072, 5, 19, 112, 1064), (66, 1088, 4, 15, 64, 1080),
    (67, 1104, 3, 11, 144, 1096), (68, 1120, 8, 29, 288, 1112), (69, 1136, 5, 18, 32, 1128),
    (71, 1168, 2, 7, 16, 1160), (72, 1184, 7, 24, 256, 1176), (73, 1200, 5, 17, 80, 1192),
    (74, 1216, 3, 10, 128, 1208), (75, 1232, 7, 23, 336, 1224), (76, 1248, 4, 13, 160, 1240),
    (78, 1280, 5, 16, 0, 1272), (79, 1296, 7, 22, 160, 1288), (83, 1360, 1, 3, 16, 1352),
    (87, 1424, 8, 23, 16, 1416), (88, 1440, 6, 17, 96, 1432), (89, 1456, 5, 14, 96, 1448),
    (91, 1488, 4, 11, 16, 1480), (92, 1504, 7, 19, 96, 1496), (94, 1536, 3, 8, 0, 1528),
    (95, 1552, 8, 21, 176, 1544), (96, 1568, 5, 13, 96, 1560), (97, 1584, 7, 18, 160, 1576),
    (100, 1632, 2, 5, 32, 1624), (103, 1680, 7, 17, 112, 1672), (104, 1696, 5, 12, 128, 1688),
    (105, 1712, 8, 19, 240, 1704), (107, 1744, 3, 7, 80, 1736), (110, 1792, 7, 16, 0, 1784),
    (111, 1808, 4, 9, 112, 1800), (114, 1856, 5, 11, 64, 1848), (116, 1888, 6, 13, 32, 1880),
    (117, 1904, 7, 15, 112, 1896), (118, 1920, 8, 17, 128, 1912), (126, 2048, 1, 2, 0, 2040),
    (134, 2176, 8, 15, 128, 2168), (135, 2192, 7, 13, 176, 2184), (137, 2224, 6, 11, 112, 2216),
    (140, 2272, 5, 9, 32, 2264), (144, 2336, 4, 7, 32, 2328), (147, 2384, 7, 12, 64, 2376),
    (151, 2448, 3, 5, 48, 2440), (155, 2512, 8, 13, 112, 2504), (158, 2560, 5, 8, 0, 2552),
    (160, 2592, 7, 11, 160, 2584), (168, 2720, 2, 3, 32, 2712), (177, 2864, 7, 10, 32, 2856),
    (180, 2912, 5, 7, 96, 2904), (184, 2976, 8, 11, 32, 2968), (190, 3072, 3, 4, 0, 3064),
    (197, 3184, 7, 9, 16, 3176), (202, 3264, 4, 5, 64, 3256), (211, 3408, 5, 6, 32, 3400),
    (217, 3504, 6, 7, 48, 3496), (222, 3584, 7, 8, 0, 3576), (225, 3632, 8, 9, 80, 3624),
    (254, 4096, 1, 1, 0, 4096),
];

/// Distinct classes for chain sizes 4 to 16. By used percent they are the documentation's, which
/// was written for that rule; kernels from 6.3 on have those by least waste.
const CLASSES_USED_PERCENT: [usize; 13] =
    [69, 86, 93, 112, 123, 140, 143, 159, 164, 180, 183, 188, 191];
const CLASSES_LEAST_WASTE: [usize; 13] =
    [69, 86, 94, 110, 119, 136, 141, 153, 159, 173, 179, 186, 192];

/// Slot bytes of the largest class that is not huge, for chain sizes 4 to 16, by either rule.
const WATERMARKS: [usize; 13] =
    [3264, 3408, 3504, 3584, 3632, 3680, 3712, 3744, 3776, 3792, 3808, 3840, 3840];

const RULES: [ChainRule; 2] = [ChainRule::UsedPercent, ChainRule::LeastWaste];

fn table(chain_size: usize, chain_rule: ChainRule) -> ClassTable {
    ClassTable::new(ZsmallocOptions::default().chain_size(chain_size).chain_rule(chain_rule))
}

fn check_rows(table: &ClassTable, rows: &[Row]) {
    let ours: Vec<_> = table
        .classes()
        .iter()
        .map(|c| (c.index, c.slot_bytes, c.pages, c.slots, c.tail_waste_bytes()))
        .collect();
    let theirs: Vec<_> = rows.iter().map(|&(a, b, c, d, e, _)| (a, b, c, d, e)).collect();
    assert_eq!(ours, theirs);
    let mut bytes = 0;
    for row in rows {
        while bytes < row.5 {
            bytes += 1;
            assert_eq!(table.class_of(bytes).index, row.0, "an object of {bytes} bytes");
        }
    }
    assert_eq!(bytes, PAGE_SIZE);
}

#[test]
fn the_table_of_kernel_6_1_is_equal_row_by_row() {
    check_rows(&table(4, ChainRule::UsedPercent), &CHAIN_4_USED_PERCENT);
}

#[test]
fn the_default_table_is_equal_row_by_row() {
    check_rows(&ClassTable::new(ZsmallocOptions::default()), &CHAIN_8_LEAST_WASTE);
}

#[test]
fn chains_of_4_differ_between_the_rules_in_one_class() {
    let mut rows = CHAIN_4_USED_PERCENT;
    rows[11] = (11, 208, 3, 59, 16, 200);
    check_rows(&table(4, ChainRule::LeastWaste), &rows);
}

#[test]
fn every_chain_size_has_the_documented_count_of_classes_and_huge_threshold() {
    for (n, chain_size) in (CHAIN_SIZE_MIN..=CHAIN_SIZE_MAX).enumerate() {
        for (rule, counts) in RULES.into_iter().zip([CLASSES_USED_PERCENT, CLASSES_LEAST_WASTE]) {
            let table = table(chain_size, rule);
            let context = format!("chain size {chain_size}, {rule}");
            assert_eq!(table.classes().len(), counts[n], "{context}");
            assert_eq!(table.huge_bytes(), WATERMARKS[n] - (HANDLE_BYTES - 1), "{context}");
            let largest = table.classes().iter().rfind(|class| !class.is_huge()).unwrap();
            assert_eq!(largest.slot_bytes, WATERMARKS[n], "{context}");
        }
    }
    // The class of 16 pages that the documentation lists comes from the older rule.
    let has_3424 = RULES.map(|rule| {
        table(16, rule).classes().iter().any(|class| (class.slot_bytes, class.pages) == (3424, 16))
    });
    assert_eq!(has_3424, [true, false]);
}

#[test]
fn every_table_serves_every_object_with_the_smallest_slot_it_has() {
    for chain_size in CHAIN_SIZE_MIN..=CHAIN_SIZE_MAX {
        for chain_rule in RULES {
            for (handle_header, header) in
                [(HandleHeader::InObject, HANDLE_BYTES), (HandleHeader::Beside, 0)]
            {
                let options = ZsmallocOptions::default()
                    .chain_size(chain_size)
                    .chain_rule(chain_rule)
                    .handle_header(handle_header);
                let table = ClassTable::new(options);
                let classes = table.classes();
                for bytes in 1..=PAGE_SIZE {
                    let place = table.place_of(bytes);
                    let class = &classes[place];
                    // A huge class keeps no header in the slot.
                    let kept = if class.is_huge() { 0 } else { header };
                    assert!(bytes + kept <= class.slot_bytes, "{bytes} bytes in {class:?}");
                    assert!(place == 0 || bytes + header > classes[place - 1].slot_bytes);
                }
                for class in classes {
                    assert!((1..=chain_size).contains(&class.pages));
                    assert!((1..=256).contains(&class.slots));
                    assert!(class.tail_waste_bytes() < class.slot_bytes);
                }
                let zspage = |place: usize| (classes[place].pages, classes[place].slots);
                assert!((1..classes.len()).all(|place| zspage(place) != zspage(place - 1)));
            }
        }
    }
}

/// Object bytes; then slot bytes, pages and slots with chains of 4 by used percent, and with chains
/// of 8 by least waste.
#[rustfmt::skip]
const VECTORS: [(usize, [usize; 3], [usize; 3]); 24] = [
    (1, [32, 1, 128], [32, 1, 128]), (24, [32, 1, 128], [32, 1, 128]),
    (25, [48, 3, 256], [48, 3, 256]), (40, [48, 3, 256], [48, 3, 256]),
    (41, [64, 1, 64], [64, 1, 64]), (100, [112, 2, 73], [112, 7, 256]),
    (200, [208, 2, 39], [208, 3, 59]), (201, [224, 4, 73], [224, 7, 128]),
    (504, [512, 1, 8], [512, 1, 8]), (505, [528, 4, 31], [528, 4, 31]),
    (1000, [1024, 1, 4], [1024, 1, 4]), (1024, [1088, 4, 15], [1056, 8, 31]),
    (1632, [1744, 3, 7], [1680, 7, 17]), (2000, [2048, 1, 2], [2048, 1, 2]),
    (2048, [2336, 4, 7], [2176, 8, 15]), (2721, [3072, 3, 4], [2864, 7, 10]),
    (3000, [3072, 3, 4], [3072, 3, 4]), (3256, [3264, 4, 5], [3264, 4, 5]),
    (3257, [4096, 1, 1], [3408, 5, 6]), (3624, [4096, 1, 1], [3632, 8, 9]),
    (3625, [4096, 1, 1], [4096, 1, 1]), (4088, [4096, 1, 1], [4096, 1, 1]),
    (4089, [4096, 1, 1], [4096, 1, 1]), (4096, [4096, 1, 1], [4096, 1, 1]),
];

#[test]
fn objects_on_the_borders_land_in_the_kernels_classes() {
    let tables = [table(4, ChainRule::UsedPercent), table(8, ChainRule::LeastWaste)];
    for (bytes, old, new) in VECTORS {
        for (table, expected) in tables.iter().zip([old, new]) {
            let class = table.class_of(bytes);
            assert_eq!([class.slot_bytes, class.pages, class.slots], expected, "{bytes} bytes");
        }
    }
}

#[test]
fn fullness_groups_are_those_of_kernel_6_4() {
    let groups: Vec<usize> = (0..=5).map(|used| fullness_group(used, 5)).collect();
    assert_eq!(groups, [0, 3, 5, 7, 9, 11]);
    for (used, group) in [(0, 0), (1, 1), (12, 1), (13, 2), (127, 10), (128, 11)] {
        assert_eq!(fullness_group(used, 128), group, "{used} of 128");
    }
    // Exactly a tenth is in the group of the next one.
    assert_eq!([9, 10, 11].map(|used| fullness_group(used, 100)), [1, 2, 2]);
    for slots in 1..=256 {
        let groups: Vec<usize> = (0..=slots).map(|used| fullness_group(used, slots)).collect();
        assert!(groups.is_sorted() && groups[slots] == FULLNESS_GROUPS - 1);
        assert!((1..slots).all(|used| (1..FULLNESS_GROUPS - 1).contains(&groups[used])));
    }
}
